"""Rates in words: arithmetic and bytes a second."""

_FLOPS = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"))
_BYTES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"))


def flops_words(flops_per_second: float) -> str:
    """A rate of arithmetic as 145 GFLOP/s or 1.2 TFLOP/s."""
    return _rate(flops_per_second, _FLOPS)


def rate_words(bytes_per_second: float) -> str:
    """A rate of bytes as 890 MB/s or 12.3 GB/s."""
    return _rate(bytes_per_second, _BYTES)


def _rate(value: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next(((size, unit) for size, unit in units if value >= size), units[-1])
    scaled = value / size
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.1f} {unit}"
