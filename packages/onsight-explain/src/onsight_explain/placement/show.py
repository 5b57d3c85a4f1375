"""A placement for people to read: a table by kind and device, and a one-line verdict."""

from collections import Counter
from typing import NamedTuple

from onsight_explain.placement.problems import Problem
from onsight_explain.placement.table import (
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
from onsight_explain.text import plural

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
_WORDS = 3  # the first columns are words, the others are numbers


class Group(NamedTuple):
    """The tensors of one kind and dtype on one device; numbers: how many they hold in total."""

    kind: str
    device: str
    dtype: str
    tensors: int
    numbers: int
    bytes: int


def grouped(rows: list[Row]) -> list[Group]:
    """The rows by kind, device and dtype, in the order of the kinds."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: list(_NOUNS).index(row.kind)):
        groups.setdefault((row.kind, row.device, row.dtype), []).append(row)
    return [
        Group(*key, len(of), sum(row.numbers for row in of), sum(row.bytes for row in of))
        for key, of in groups.items()
    ]


def table_text(rows: list[Row]) -> str:
    """The groups as lines with aligned columns."""
    cells = [Group._fields, *(tuple(map(_cell, group)) for group in grouped(rows))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(_line(row, widths) for row in cells)


def _cell(value: object) -> str:
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
    rest = f" but {' and '.join(but)}, where torch accepts them" if but else ""
    return f"everything is on {home}{rest}: {', '.join(counts) or 'no tensors'}"
