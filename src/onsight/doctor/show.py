"""The doctor's report, for people and as JSON."""

from collections.abc import Mapping
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
_LEFT = 11  # columns for a mark and its word
_ARROW = "-> "


def print_lines(lines: Mapping[str, Line], console: Console) -> None:
    """Print each line with its mark and its remedy, and the verdict at the end.

    Sentences are wrapped; commands are not, so that they can be copied whole.
    """
    for topic, line in lines.items():
        mark, style = _MARKS[line.state]
        body = Text.assemble((topic, "bold"), f": {line.said}")
        _print_beside(Text(f"{mark} {line.state}".ljust(_LEFT), style), body, console)
        sentence, *commands = line.remedy.split("\n")
        if sentence:
            _print_beside(Text(" " * _LEFT + _ARROW), Text(sentence), console)
        for command in commands:
            console.print(Text(" " * (_LEFT + len(_ARROW)) + command), soft_wrap=True)
    console.print()
    _print_beside(Text(), Text(verdict(lines), "bold"), console)


def verdict(lines: Mapping[str, Line]) -> str:
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
            f"No problems, but {plural(warnings, 'warning')}: training works here, perhaps slower "
            "than it could."
        )
    return "All is well. To begin: onsight train demo"


def facts(lines: Mapping[str, Line]) -> dict[str, Any]:
    """The lines as plain values for JSON; rates are per second, sizes in bytes."""
    return {
        "verdict": verdict(lines),
        "problems": count(lines, "problem"),
        "warnings": count(lines, "warning"),
        "lines": [{"topic": topic, **asdict(line)} for topic, line in lines.items()],
    }


def _print_beside(left: Text, body: Text, console: Console) -> None:
    """Print a text, wrapped, to the right of another, which is on its first line only."""
    indent = len(left)
    for part in body.wrap(console, console.width - indent):
        part.rstrip()
        console.print(Text.assemble(left, part), soft_wrap=True)
        left = Text(" " * indent)
