"""Memory: how much there is, how much is free and, if it is scarce, what uses it."""

import os
from pathlib import Path

import torch

from onsight.doctor.line import Line
from onsight.words import gib
from onsight_explain.devices import free_memory_bytes, memory_bytes

_PROC = Path("/proc")
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_TOO_LITTLE_BYTES = 512 << 20  # about what torch alone needs
_LITTLE_BYTES = 2 << 30
_NAMED = 3  # processes named at most


def check_memory() -> Line:
    """Free memory within a container's limit and, if it is scarce, the largest processes."""
    total = min(_limit_bytes() or memory_bytes(), memory_bytes())
    is_limited = total < memory_bytes()
    free = free_memory_bytes(torch.device("cpu"))
    figures = {"total_bytes": total, "free_bytes": free, "is_limited": is_limited}
    whose = " that this container may use" if is_limited else ""
    swap, swapped = _swap_bytes()
    said = f"{gib(free)} of {gib(total)}{whose} free; " + (
        f"{gib(swapped)} of {gib(swap)} swap used." if swap else "no swap."
    )
    figures |= {"swap_bytes": swap, "swap_used_bytes": swapped}
    if free >= _LITTLE_BYTES:
        return Line("ok", said, "", figures)
    largest = _largest_processes()
    names = ", ".join(f"{name} (process {pid}, {gib(size)})" for pid, name, size in largest)
    return Line(
        "problem" if free < _TOO_LITTLE_BYTES else "warning",
        f"{said} The largest processes: {names or 'unknown'}.",
        "Stop what is not needed, or give the container more memory; a smaller --batch-size or "
        "--image-size needs less.",
        figures | {"processes": [{"pid": p, "name": n, "bytes": b} for p, n, b in largest]},
    )


def _limit_bytes() -> int | None:
    """The memory limit of the cgroup (v2, then v1), if it has one."""
    for path in _LIMITS:
        try:
            return int(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the file is missing, or says "max"
            continue
    return None


def _swap_bytes() -> tuple[int, int]:
    """(total, used) bytes of swap."""
    kibibytes = {"SwapTotal": 0, "SwapFree": 0}
    try:
        for line in (_PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            if name in kibibytes:
                kibibytes[name] = int(rest.split()[0])
    except OSError:
        pass
    return kibibytes["SwapTotal"] << 10, (kibibytes["SwapTotal"] - kibibytes["SwapFree"]) << 10


def _largest_processes() -> list[tuple[int, str, int]]:
    """(id, name, resident bytes) of the largest processes other than this one."""
    found = []
    for folder in _PROC.glob("[0-9]*"):
        try:
            pages = int((folder / "statm").read_text(encoding="utf-8").split()[1])
            name = (folder / "comm").read_text(encoding="utf-8").strip()
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        if int(folder.name) != os.getpid():
            found.append((int(folder.name), name, pages * os.sysconf("SC_PAGE_SIZE")))
    return sorted(found, key=lambda one: -one[2])[:_NAMED]
