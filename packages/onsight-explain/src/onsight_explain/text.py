"""Format counts, lists, percentages, times and rates."""

import math
from collections.abc import Sequence

_FLOPS = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"))
_BYTES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"))


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, as `1 core` or `2 cores`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Join names as `a, b and c`; after `limit` of them only the number: `a, b and 5 more`."""
    if len(names) > limit + 1:
        names = [*names[:limit], f"{len(names) - limit:,} more"]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def percent(share: float) -> str:
    """Format a share as 91.4%, with more digits where fewer would round to 0% or 100%."""
    if not math.isfinite(share):
        return "–"
    share = round(share, 9)  # floating-point error may leave an interval's end just below 1
    if share in (0, 1):
        return f"{share:.0%}"
    if share < 0.0001:
        return "<0.01%"
    if share > 0.9999:
        return ">99.99%"
    return f"{share:.2%}" if share < 0.0005 or share > 0.9995 else f"{share:.1%}"


def ratio_words(ratio: float) -> str:
    """Format a ratio as 1.04x, 3.2x or 85x."""
    digits = 2 if ratio < 2 else 1 if ratio < 20 else 0
    return f"{ratio:.{digits}f}x"


def step_times(*seconds: float) -> list[str]:
    """Format times in the unit of the smallest one above 0, as 0.61 ms or 14.2 µs."""
    smallest = min((value for value in seconds if value), default=1.0)
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if smallest >= 0.1 * size:
            return [f"{_three_digits(value / size)} {unit}" for value in seconds]
    return [f"{_three_digits(value / 1e-6)} µs" for value in seconds]


def flops_words(flops_per_second: float) -> str:
    """Format a rate of arithmetic as 145 GFLOP/s or 1.2 TFLOP/s."""
    return _rate(flops_per_second, _FLOPS)


def rate_words(bytes_per_second: float) -> str:
    """Format a rate of data as 890 MB/s or 12.3 GB/s."""
    return _rate(bytes_per_second, _BYTES)


def _rate(value: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next(((size, unit) for size, unit in units if value >= size), units[-1])
    scaled = value / size
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.1f} {unit}"


def _three_digits(value: float) -> str:
    return f"{value:,.{2 if 0 < value < 10 else 1 if 0 < value < 100 else 0}f}"
