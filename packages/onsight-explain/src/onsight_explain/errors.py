"""The errors that onsight-explain raises on purpose. Their messages include what to do.

ExplainError
    ScriptFailed
    PlacementError
    DiskError
"""


class ExplainError(Exception):
    """A problem that the user can fix."""

    exit_code = 2


class ScriptFailed(ExplainError):
    """The user's script failed while it was being profiled; the message is the script's."""


class PlacementError(ExplainError):
    """A tensor is on the wrong device; the message names it and the line that fixes it."""


class DiskError(ExplainError):
    """A file could not be written."""

    exit_code = 1
