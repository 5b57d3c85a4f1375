"""The result of a check, and the report of all results, for people and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from onsight.text import plural

Status = Literal["ok", "note", "warning", "problem"]

_MARKS: dict[Status, tuple[str, str]] = {
    "ok": ("✓", "green"),
    "note": ("·", "dim"),
    "warning": ("!", "yellow"),
    "problem": ("✗", "bold red"),
}
_INDENT = 11  # columns for a mark and its word
_ARROW = "-> "


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    A note is information only; a warning means slower runs or a possible failure later; a problem
    stops runs or leaves hardware unused.
    """

    status: Status
    message: str
    remedy: str = ""  # a sentence, and below it the commands to type, one per line
    figures: dict[str, Any] = field(default_factory=dict)  # measurements, as plain values


def count(results: Mapping[str, CheckResult], status: Status) -> int:
    """Return the number of results with a status."""
    return sum(result.status == status for result in results.values())


def print_results(results: Mapping[str, CheckResult], console: Console) -> None:
    """Print each result with its remedy, and the verdict at the end.

    Sentences are wrapped; commands are not, so that they can be copied whole.
    """
    for name, result in results.items():
        mark, style = _MARKS[result.status]
        body = Text.assemble((name, "bold"), f": {result.message}")
        _print_beside(Text(f"{mark} {result.status}".ljust(_INDENT), style), body, console)
        sentence, *commands = result.remedy.split("\n")
        if sentence:
            _print_beside(Text(" " * _INDENT + _ARROW), Text(sentence), console)
        for command in commands:
            console.print(Text(" " * (_INDENT + len(_ARROW)) + command), soft_wrap=True)
    console.print()
    _print_beside(Text(), Text(verdict(results), "bold"), console)


def verdict(results: Mapping[str, CheckResult]) -> str:
    """Return a sentence that sums up all results."""
    problems, warnings = count(results, "problem"), count(results, "warning")
    if problems:
        also = f" and {plural(warnings, 'warning')}" if warnings else ""
        return (
            f"{plural(problems, 'problem')}{also}. Fix problems first: they stop runs or leave "
            "hardware unused."
        )
    if warnings:
        return (
            f"No problems, but {plural(warnings, 'warning')}: training works, but may be slower "
            "than it could be."
        )
    return "No problems found. To begin: onsight train demo"


def facts(results: Mapping[str, CheckResult]) -> dict[str, Any]:
    """Return the report as plain values for JSON; rates are per second, sizes in bytes."""
    return {
        "verdict": verdict(results),
        "problems": count(results, "problem"),
        "warnings": count(results, "warning"),
        "checks": [{"check": name, **asdict(result)} for name, result in results.items()],
    }


def _print_beside(left: Text, body: Text, console: Console) -> None:
    """Print `body`, wrapped, to the right of `left`, which is printed on the first line only."""
    indent = len(left)
    for part in body.wrap(console, console.width - indent):
        part.rstrip()
        console.print(Text.assemble(left, part), soft_wrap=True)
        left = Text(" " * indent)
