"""The memory that this machine has left, without torch."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def free_host_bytes() -> int:
    """Return the memory that this process may still use, in bytes; 0 if unknown."""
    free = _available_bytes()
    granted = _free_cgroup_bytes()
    return free if granted is None else min(free, granted)


def _available_bytes() -> int:
    """Return the memory that is available without swapping, including file caches."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _free_cgroup_bytes() -> int | None:
    """Return the bytes left below the cgroup's limit (v2, then v1), or None without a limit.

    Files that the kernel caches count as used there, but are given up when memory is needed.
    """
    for limit_file, usage_file in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = (int((_CGROUP / name).read_text()) for name in (limit_file, usage_file))
        except (OSError, ValueError):  # the file is missing, or contains "max"
            continue
        return max(0, limit - used + _inactive_file_bytes((_CGROUP / usage_file).parent))
    return None


def _inactive_file_bytes(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
        figures = {name: int(count) for name, count in map(str.split, lines)}
    except (OSError, ValueError):
        return 0
    return figures.get("total_inactive_file", figures.get("inactive_file", 0))
