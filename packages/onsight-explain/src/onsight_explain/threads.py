"""How many cores this process may use, and how OpenMP's threads wait at barriers.

By default libgomp's threads spin for long at a barrier, which is fastest on an idle machine and
wastes cores on a busy one. This module does not import torch: libgomp reads its variables when
torch loads.
"""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SPIN_VARIABLE, SHORT_SPIN = "GOMP_SPINCOUNT", "2000"
POLICY_VARIABLE = "OMP_WAIT_POLICY"  # also decides how long, unless the other one is set

# What sets how OpenMP's threads wait, how many there are, and where they run.
THREAD_VARIABLES = (
    SPIN_VARIABLE,
    POLICY_VARIABLE,
    "OMP_NUM_THREADS",
    "OMP_THREAD_LIMIT",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_NUM_THREADS",
)

_CGROUP = Path("/sys/fs/cgroup")
_LOAD = Path("/proc/loadavg")
_SAMPLES, _SAMPLE_SECONDS = 5, 0.01

_core_limit: list[int] = []  # at most one number, set by limit_cores


def usable_cores() -> int:
    """Return the least of the core counts by affinity, by CPU quota and by `limit_cores`."""
    return max(1, min([_count_cores(), *_core_limit]))


def limit_cores(count: int) -> None:
    """Limit the cores of this process, because other processes use the rest."""
    _core_limit[:] = [count]


def choose_spinning() -> None:
    """Let threads spin briefly if other work leaves too few cores, unless the user has chosen.

    Has no effect once torch is loaded.
    """
    if "torch" in sys.modules or not {SPIN_VARIABLE, POLICY_VARIABLE}.isdisjoint(os.environ):
        return
    if is_busy():
        os.environ[SPIN_VARIABLE] = SHORT_SPIN


def is_busy() -> bool:
    """Return whether other processes leave fewer cores than this one may use; takes 40 ms."""
    return _count_other_threads() + usable_cores() > (os.cpu_count() or 1)


def thread_variables_set_by_user(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the thread variables that are set, without the one set by `choose_spinning`."""
    settings = {name: environment[name] for name in THREAD_VARIABLES if name in environment}
    chosen = chosen_spinning(environment)
    return {name: value for name, value in settings.items() if name not in chosen}


def chosen_spinning(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that `choose_spinning` has set, or nothing if it has set none."""
    is_chosen = environment.get(SPIN_VARIABLE) == SHORT_SPIN
    return {SPIN_VARIABLE: SHORT_SPIN} if is_chosen else {}


def _count_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _cgroup_quota() -> float | None:
    """Return the cgroup's CPU quota in cores (v2, then v1), or None if there is no limit."""
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


def _count_other_threads() -> int:
    """Count runnable threads of other processes: the minimum of a few samples; 0 if unknown."""
    counts = []
    for sample in range(_SAMPLES):
        try:
            running = _LOAD.read_text(encoding="ascii").split()[3].partition("/")[0]
        except (OSError, IndexError):
            return 0
        counts.append(int(running) - 1)  # without this thread
        if sample < _SAMPLES - 1:
            time.sleep(_SAMPLE_SECONDS)
    return max(0, min(counts))
