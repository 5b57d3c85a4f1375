"""Rates and sizes in the doctor's words."""

_FLOPS = ((1e15, "PFLOP/s"), (1e12, "TFLOP/s"), (1e9, "GFLOP/s"))
_BYTES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"))


def flops_words(flops_per_second: float) -> str:
    """A rate of arithmetic as 145 GFLOP/s or 1.2 TFLOP/s."""
    return _rate(flops_per_second, _FLOPS)


def rate_words(bytes_per_second: float) -> str:
    """A rate of bytes as 890 MB/s or 12.3 GB/s."""
    return _rate(bytes_per_second, _BYTES)


def gib(count: int) -> str:
    """Bytes of memory as 79.2 GiB."""
    return f"{count / 2**30:,.1f} GiB"


def counted(count: int, name: str) -> str:
    """A count with its noun: 1 core, 2 cores."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def _rate(value: float, units: tuple[tuple[float, str], ...]) -> str:
    size, unit = next(((size, unit) for size, unit in units if value >= size), units[-1])
    scaled = value / size
    return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.1f} {unit}"
