"""When a change counts as faster, and when one is kept beside others."""

# A machine is never quiet, so smaller gains mean nothing.
GAIN = 1.05  # times the speed, at least, to be called faster
BETTER = 1.03  # times the speed of what a combination would replace
