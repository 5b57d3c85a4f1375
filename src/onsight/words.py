"""Counts, lists, shares, times and sizes in words, the same everywhere."""

import math
from collections.abc import Sequence


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 core`, `2 cores`; many is the plural if it is not one + s."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """`a, b and c`; of a longer list, the first names and how many more: `a, b and 5 more`."""
    if len(names) > most + 1:
        names = [*names[:most], f"{len(names) - most:,} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def shortened(name: str, length: int) -> str:
    """A name on one line of at most length characters."""
    plain = " ".join(name.split())
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def percent(share: float | None) -> str:
    """A share as 91.4%, with more digits where fewer would round to 0% or 100%."""
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
    """Bytes of a file or a disk as 5.5 MB or 12.3 GB."""
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"


def gib(count: int) -> str:
    """Bytes of memory as 79.2 GiB."""
    return f"{count / 2**30:,.1f} GiB"
