"""Numbers as a reader wants them: shares, times, counts, sizes and plain values."""

import math
from collections.abc import Mapping
from typing import Any


def percent(share: float | None) -> str:
    """A share as 91.4%; more digits where these would round to none or all."""
    if share is None or not math.isfinite(share):
        return "–"
    share = round(share, 9)  # an interval's end may miss 1 by the float's last bit
    if share in (0, 1):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    if share > 0.9999:
        return ">99.99%"
    return f"{share:.2%}" if share < 0.0005 or share > 0.9995 else f"{share:.1%}"


def fixed_percent(share: float | None) -> str:
    """A share as 91.40%, always with two decimals so that columns line up in a terminal."""
    return "-" if share is None else f"{100 * share:.2f}%"


def duration(seconds: float | None) -> str:
    """Seconds as 0.42 s, 12.3 s, 4 min 5 s or 2 h 3 min."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if round(seconds, 1) < 60:
        return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def data_size(count: int) -> str:
    """Bytes as 5.5 MB or 12.3 GB."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"


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


def shortened(name: str, length: int) -> str:
    """A name on one line of at most so many characters."""
    plain = " ".join(name.split())
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def path_end(path: str, length: int = 44) -> str:
    """The end of a path, which tells files apart."""
    if len(path) <= length:
        return path
    tail = path[-length:]
    return "…/" + (tail.partition("/")[2] or tail)
