"""A placement as people read it: a row a kind and device, and one line of verdict."""

from collections import Counter
from typing import Any

from onsight.hardware.placement.faults import Problem
from onsight.hardware.placement.table import (
    ATTRIBUTE,
    BATCH,
    BUFFER,
    COPY,
    LOSS,
    METRIC,
    PARAMETER,
    STATE,
    Row,
)
from onsight.words import plural

_NOUNS = {
    PARAMETER: "parameter",
    BUFFER: "buffer",
    ATTRIBUTE: "plain tensor",
    LOSS: "loss tensor",
    STATE: "optimizer tensor",
    METRIC: "metric tensor",
    COPY: "averaged tensor",
    BATCH: "batch tensor",
}
_HEADER = ("kind", "device", "dtype", "tensors", "numbers", "bytes")
_WORDS = 3  # columns of words, the others are numbers


def grouped(rows: list[Row]) -> list[dict[str, Any]]:
    """Rows of equal kind, device and dtype as one, with their number, numbers and bytes."""
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: list(_NOUNS).index(row.kind)):
        key = (row.kind, row.device, row.dtype)
        counts = {"tensors": 0, "numbers": 0, "bytes": 0}
        group = groups.setdefault(key, dict(zip(_HEADER, key, strict=False)) | counts)
        group["tensors"] += 1
        group["numbers"] += row.numbers
        group["bytes"] += row.bytes
    return list(groups.values())


def table_text(rows: list[Row]) -> str:
    """The groups as lines of equal columns."""
    cells = [_HEADER, *(tuple(map(_cell, group.values())) for group in grouped(rows))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(_line(row, widths) for row in cells)


def _cell(value: str | int) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    pairs = list(zip(row, widths, strict=True))
    words = [cell.ljust(width) for cell, width in pairs[:_WORDS]]
    return "  ".join([*words, *(cell.rjust(width) for cell, width in pairs[_WORDS:])])


def verdict_of(rows: list[Row], home: str, problems: list[Problem], notes: list[str]) -> str:
    """Where everything is, or the first problem and how many more."""
    more = f" (and {plural(len(problems) - 1, 'more problem')})" if problems[1:] else ""
    said = f"{problems[0].what}{more}" if problems else _all_is_well(rows, home)
    return "; note: ".join([said, *notes])


def _all_is_well(rows: list[Row], home: str) -> str:
    kinds: Counter[str] = Counter(row.kind for row in rows)
    kinds[PARAMETER] = sum(row.numbers for row in rows if row.kind == PARAMETER)
    always = {PARAMETER, BUFFER} if kinds[PARAMETER] else set()
    counts = [plural(kinds[k], noun) for k, noun in _NOUNS.items() if kinds[k] or k in always]
    away = Counter((row.kind, row.device) for row in rows if row.device != home)
    but = [f"{plural(count, _NOUNS[kind])} on {device}" for (kind, device), count in away.items()]
    rest = f" but {' and '.join(but)}, where torch takes them from" if but else ""
    return f"everything is on {home}{rest}: {', '.join(counts) or 'no tensors'}"
