"""How to start Onsight's Python processes, and how long this one has been running."""

import os
import sys
import time
from pathlib import Path

_IMPORTED = time.monotonic()
_SCHEDULING = Path("/proc/thread-self/schedstat")  # ns running, ns waiting for a core, switches


def child_command(module: str) -> list[str]:
    """Return the start of a command line that runs a module in another Python process.

    With -P nothing is imported from the working directory, which may be anybody's. A flag and not
    an environment variable, because the child's children would inherit a variable.
    """
    return [sys.executable, "-P", "-m", module]


def seconds_since_start() -> float:
    """Return the age of this process; if that is unknown, the time since this module's import."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, AttributeError, IndexError, ValueError):
        return time.monotonic() - _IMPORTED


def runnable_seconds() -> float:
    """Return how long this thread has run or waited for a core, but not for a disk or a network.

    Only Linux tells how long it waited; elsewhere, that time is missing.
    """
    try:
        waiting_seconds = int(_SCHEDULING.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        waiting_seconds = 0.0
    return time.thread_time() + waiting_seconds
