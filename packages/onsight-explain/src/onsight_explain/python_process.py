"""How to start Onsight's Python processes, and how long this one has been running."""

import os
import sys
import time
from pathlib import Path

_IMPORTED = time.monotonic()


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
