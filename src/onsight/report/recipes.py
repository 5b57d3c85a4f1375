"""The ready-made configs as readable text: one block each, on a terminal or in a pipe."""

import textwrap
from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape

_TITLES = {
    "data": "data",
    "reproduces": "reproduces",
    "published": "published",
    "measured": "measured",
    "stand_in": "also on",
}
_INDENT = 14


def print_recipe(name: str, about: Mapping[str, str], console: Console) -> None:
    """Print a recipe's name, its description and the command that runs it."""
    console.print(f"[bold]{escape(name)}[/]")
    rows = {title: about[key] for key, title in _TITLES.items()}
    for title, text in (rows | {"command": f"onsight train --recipe {name}"}).items():
        console.print(escape(_row(title, text, console)))
    console.print()


def _row(title: str, text: str, console: Console) -> str:
    """A title and its text, wrapped on a terminal and on one line in a pipe."""
    head = f"  {title}".ljust(_INDENT)
    if not console.is_terminal:
        return head + text
    return textwrap.fill(
        text,
        max(console.width, 2 * _INDENT),
        initial_indent=head,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
