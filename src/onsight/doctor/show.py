"""The doctor's lines as people and programs read them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from onsight.doctor.line import Line, State, count
from onsight.words import plural

_MARKS: dict[State, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "dim"),
    "warning": ("!", "yellow"),
    "problem": ("✗", "bold red"),
}
_LEFT = 11  # columns that a mark and its word take
_ARROW = "-> "


def print_lines(lines: Sequence[Line], console: Console) -> None:
    """Each line with its mark and word, its remedy below, and the verdict at the end.

    Sentences are wrapped, commands are not: they stay whole when they are copied.
    """
    for line in lines:
        mark, style = _MARKS[line.state]
        body = Text.assemble((line.topic, "bold"), f": {line.said}")
        _print_beside(Text(f"{mark} {line.state}".ljust(_LEFT), style), body, console)
        sentence, *commands = line.remedy.split("\n")
        if sentence:
            _print_beside(Text(" " * _LEFT + _ARROW), Text(sentence), console)
        for command in commands:
            console.print(Text(" " * (_LEFT + len(_ARROW)) + command), soft_wrap=True)
    console.print()
    _print_beside(Text(), Text(verdict(lines), "bold"), console)


def verdict(lines: Sequence[Line]) -> str:
    """All lines in one sentence."""
    problems, warnings = count(lines, "problem"), count(lines, "warning")
    if problems:
        also = f" and {plural(warnings, 'warning')}" if warnings else ""
        return (
            f"{plural(problems, 'problem')}{also}. A problem stops runs or leaves hardware "
            "unused: fix it first."
        )
    if warnings:
        return (
            f"No problem, but {plural(warnings, 'warning')}: runs work here, perhaps slower "
            "than they could."
        )
    return "All is well. To begin: onsight train demo"


def facts(lines: Sequence[Line]) -> dict[str, Any]:
    """The lines as plain values; rates are a second, sizes in bytes."""
    return {
        "verdict": verdict(lines),
        "problems": count(lines, "problem"),
        "warnings": count(lines, "warning"),
        "lines": [asdict(line) for line in lines],
    }


def _print_beside(left: Text, body: Text, console: Console) -> None:
    """A text wrapped beside another, which stands before its first line alone."""
    indent = len(left)
    for part in body.wrap(console, console.width - indent):
        part.rstrip()
        console.print(Text.assemble(left, part), soft_wrap=True)
        left = Text(" " * indent)
