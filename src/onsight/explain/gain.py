"""From which gain on a change counts, on a machine that is never quiet."""

GAIN = 1.05  # times the speed, at least, to be called faster
BETTER = 1.03  # times the speed of what a combination would replace
