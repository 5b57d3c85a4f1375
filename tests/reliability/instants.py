"""Instants of a run: the calls and returns of all its functions, those of C included, counted.

What is done at an instant happens at the same place of the program each time. These functions are
called in the process of a trial.
"""

import os
import resource
import signal
import sys
from multiprocessing.util import Finalize
from pathlib import Path

SAVES = {"save_checkpoint", "save_weights", "keep_former"}


class Instants:
    """Counts instants, all or those inside a save, and acts once at a given one."""

    def __init__(self, act, at, inside):
        self.act, self.at, self.inside = act, at, inside
        self.all = self.in_saves = self.depth = self.saves = 0

    def __call__(self, frame, event, arg):
        name = frame.f_code.co_name
        if name in SAVES and event == "call":
            self.depth += 1
        self.all += 1
        self.in_saves += self.depth > 0
        if (self.in_saves if self.inside else self.all) == self.at:
            self.at = None
            self.act()
        if name in SAVES and event == "return":
            self.depth -= 1


def number_instants(told):
    """Write (all instants, those inside a save) to a file when the run ends."""
    instants = Instants(None, None, False)
    # multiprocessing ends its processes without atexit.
    Finalize(None, lambda: Path(told).write_text(f"{instants.all} {instants.in_saves}"), (), {}, 1)
    sys.setprofile(instants)


def signal_at(number, at, inside, saved):
    """Send this process a signal at an instant; note where each save that was complete stood."""
    instants = Instants(lambda: os.kill(os.getpid(), number), at, inside)
    sys.setprofile(_noting(instants, saved))


def kill_in_write(save, part, saved):
    """SIGKILL in the middle of a write: that part of the checkpoint is on the disk, no more."""
    saves = 0

    def watch(frame, event, arg):
        nonlocal saves
        if event == "call" and frame.f_code.co_name == "write_atomically":
            path, data = frame.f_locals["path"], frame.f_locals["data"]
            if path.name == "last.safetensors":
                saves += 1
                if saves == save:
                    most = int(len(data) * part)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        refused = event == "c_exception" and arg.__name__ in ("write", "flush")
        if refused and saves == save:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(_noting(watch, saved))


def _noting(watch, saved):
    def both(frame, event, arg):
        watch(frame, event, arg)
        if event == "return" and frame.f_code.co_name == "save_checkpoint":
            now = frame.f_locals["progress"]
            Path(saved).write_text(f"{now['epoch']} {now['step']}")

    return both
