"""The errors that onsight-explain raises on purpose; each message tells how to fix the problem."""


class ExplainError(Exception):
    """Something the user can fix."""

    exit_code = 2


class ScriptFailed(ExplainError):
    """The user's script failed while it was being explained; the message is its own."""


class PlacementError(ExplainError):
    """A tensor is on the wrong device; the message names it and the line that fixes it."""


class DiskError(ExplainError):
    """A file could not be written."""

    exit_code = 1
