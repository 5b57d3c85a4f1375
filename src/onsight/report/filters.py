"""How the report's page writes values: counts, measured numbers, paths and plain values."""

import math
from collections.abc import Mapping
from typing import Any


def whole(value: float | None) -> str:
    """A count as 12,345."""
    return "–" if value is None or not math.isfinite(value) else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A measured number with four digits that count."""
    return "–" if value is None else f"{value:,.4g}"


def plain(value: Any) -> str:
    """A value of the plan or the environment in words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(plain(item) for item in value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def path_end(path: str, length: int = 44) -> str:
    """The end of a path, which tells files apart."""
    if len(path) <= length:
        return path
    tail = path[-length:]
    return "…/" + (tail.partition("/")[2] or tail)
