"""How long OpenMP's threads spin at barriers, a variable that libgomp reads when torch loads.

Spinning for long, the default, is fastest on an idle machine, but wastes cores on a busy one.
"""

import os
import sys
import time
from pathlib import Path

from onsight_explain.cores import usable_cores

SPIN_VARIABLE, SHORT_SPIN = "GOMP_SPINCOUNT", "2000"

_LOAD = Path("/proc/loadavg")
_LOOKS, _LOOK_SECONDS = 5, 0.01


def choose_spinning() -> None:
    """Let threads spin briefly if other work leaves too few cores, unless the user has chosen."""
    if "torch" in sys.modules or not {SPIN_VARIABLE, "OMP_WAIT_POLICY"}.isdisjoint(os.environ):
        return
    if is_busy():
        os.environ[SPIN_VARIABLE] = SHORT_SPIN


def is_busy() -> bool:
    """Whether other processes leave fewer cores than this one may use; takes 40 ms."""
    return _others_running() + usable_cores() > (os.cpu_count() or 1)


def _others_running() -> int:
    """Runnable threads of other processes, the minimum of a few samples; 0 if unknown."""
    counts = []
    for look in range(_LOOKS):
        try:
            running = _LOAD.read_text(encoding="ascii").split()[3].partition("/")[0]
        except (OSError, IndexError):
            return 0
        counts.append(int(running) - 1)  # without this one
        if look < _LOOKS - 1:
            time.sleep(_LOOK_SECONDS)
    return max(0, min(counts))
