"""Findings for people: the line, what is wrong with it and why, and the line as it should be."""

import textwrap
from collections.abc import Sequence

from onsight_lint.library import Library
from onsight_lint.many import Readings
from onsight_lint.paths import shown
from onsight_lint.read import Finding

_WIDTH = 96
_RED, _GREEN, _BOLD, _FAINT, _PLAIN = "\033[31m", "\033[32m", "\033[1m", "\033[2m", "\033[0m"


def as_text(findings: Sequence[Finding], library: Library, colour: bool) -> str:
    """The findings, one after the other."""
    parts = (_finding(one, library.text(one.file).split("\n"), colour) for one in findings)
    return "".join(f"{part}\n" for part in parts)


def summary(readings: Readings) -> str:
    """How many mistakes there are: `3 mistakes in 2 of 41 files`."""
    files = plural(len(readings.files) - len(readings.unread), "file")
    if not readings.findings:
        return f"no mistakes in {files}"
    broken = len({one.file for one in readings.findings})
    return f"{plural(len(readings.findings), 'mistake')} in {broken:,} of {files}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _finding(one: Finding, lines: Sequence[str], colour: bool) -> str:
    def painted(text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if colour else text

    line = lines[one.line - 1]
    width = one.end_column - one.column if one.end_line == one.line else len(line) + 1 - one.column
    room = len(str(one.line))
    # Tabs stay tabs, so that the carets stand below the code.
    below = "".join("\t" if letter == "\t" else " " for letter in line[: one.column - 1])
    bar = painted("|", _FAINT)
    mark = " [--fix]" if one.mend else ""
    place = f"{shown(one.file)}:{one.line}:{one.column}"
    shows = [
        f"{painted(place, _BOLD)} {painted(one.rule, _RED)}{mark} {one.problem}",
        f"  {painted(str(one.line), _FAINT)} {bar} {line}",
        f"  {'':{room}} {bar} {below}{painted('^' * max(1, width), _RED)}",
        *(f"  {'+':>{room}} {bar} {painted(part, _GREEN)}" for part in one.fixed.split("\n")),
        textwrap.fill(one.why, _WIDTH, initial_indent="  ", subsequent_indent="  "),
    ]
    return "\n".join(part.rstrip() for part in shows) + "\n"
