"""How many cores this process may use."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


_most: list[int] = []  # cores that this process was given, if it was told


def limit_cores(count: int) -> None:
    """Let this process use no more cores: others on this machine were given the rest."""
    _most[:] = [count]


def usable_cores() -> int:
    """The number of cores by affinity, by the CPU quota or as limited, the least; at least 1."""
    return max(1, min(_cores(), *_most)) if _most else _cores()


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _cgroup_quota() -> float | None:
    """The cgroup's CPU quota in cores (v2, then v1), or None if there is no limit."""
    try:
        limit, period = (_CGROUP / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int((_CGROUP / "cpu/cpu.cfs_quota_us").read_text())
        period_us = int((_CGROUP / "cpu/cpu.cfs_period_us").read_text())
        return limit_us / period_us if limit_us > 0 else None
    except (OSError, ValueError):
        return None
