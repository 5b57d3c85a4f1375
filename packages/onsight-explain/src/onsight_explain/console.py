"""Progress messages of `explain`, on stderr, and the console that shows results."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from onsight_lint.files import printable


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


class TextConsole(Console):
    """A console for untrusted text: it interprets no markup, emoji codes or control characters."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **settings)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as usual, with the characters that could control the terminal escaped."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> NoReturn:
        """Raise the error instead of exiting with code 1."""
        raise


def _print(line: Text) -> None:
    with suppress(OSError, ValueError):
        console = TextConsole(stderr=True)
        console.print(line, soft_wrap=not console.is_terminal)  # paths stay whole in a pipe
