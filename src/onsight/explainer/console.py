"""What `explain` says while it works, on stderr."""

from contextlib import suppress
from typing import NoReturn, Protocol

from rich.console import Console
from rich.text import Text


class Messages(Protocol):
    """Where lines for people go."""

    def say(self, text: str) -> None:
        """One line."""

    def warn(self, text: str) -> None:
        """One line that deserves attention."""


class StderrMessages:
    """Lines on stderr; nothing ends because nobody reads them."""

    def say(self, text: str) -> None:
        """One line."""
        _print(Text(text))

    def warn(self, text: str) -> None:
        """One line that deserves attention."""
        _print(Text.assemble(("note:", "yellow"), f" {text}"))


class _Stderr(Console):
    def on_broken_pipe(self) -> NoReturn:
        """Raise the error, in place of ending the program with code 1."""
        raise


def _print(line: Text) -> None:
    with suppress(OSError, ValueError):
        _Stderr(stderr=True, soft_wrap=True).print(line)
