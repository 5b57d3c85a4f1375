"""Errors that the user can fix or must know of; each message states what happened."""

import difflib
from collections.abc import Iterable


class LintError(Exception):
    """The user can fix it, such as an option that does not exist."""

    exit_code = 2


class ReadError(LintError):
    """A file cannot be read, is not Python 3, or must not be rewritten."""


class WriteError(LintError):
    """A file could not be written."""

    exit_code = 1


def did_you_mean(name: str, options: Iterable[str]) -> str:
    """Return ' Did you mean a, b?' with the options closest to a name, or an empty string."""
    near = difflib.get_close_matches(name, list(options), n=3, cutoff=0.6)
    return f" Did you mean {', '.join(near)}?" if near else ""
