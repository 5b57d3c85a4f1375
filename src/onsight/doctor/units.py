"""Sizes and counts in words."""


def gib(count: int) -> str:
    """Bytes of memory in GiB: 79.2 GiB."""
    return f"{count / 2**30:,.1f} GiB"


def counted(count: int, name: str) -> str:
    """A count with its noun: 1 core, 2 cores."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")
