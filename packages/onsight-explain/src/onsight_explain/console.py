"""Progress messages of `explain`, on stderr."""

from contextlib import suppress
from typing import NoReturn, Protocol

from rich.console import Console
from rich.text import Text


class Messages(Protocol):
    """A destination for progress messages."""

    def say(self, text: str) -> None:
        """Print a line."""

    def warn(self, text: str) -> None:
        """Print a line that deserves attention."""


class StderrMessages:
    """Messages on stderr. A closed or broken stderr is ignored."""

    def say(self, text: str) -> None:
        """Print a line."""
        _print(Text(text))

    def warn(self, text: str) -> None:
        """Print a line that deserves attention."""
        _print(Text.assemble(("note:", "yellow"), f" {text}"))


class _Stderr(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the error instead of exiting with code 1."""
        raise


def _print(line: Text) -> None:
    with suppress(OSError, ValueError):
        console = _Stderr(stderr=True)
        console.print(line, soft_wrap=not console.is_terminal)  # paths stay whole in a pipe
