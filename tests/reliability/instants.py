"""Instants of a run: the calls and returns of all its functions, those of C included, counted.

What is done at an instant happens at the same place of the program each time. These functions are
called in the process of a trial.
"""

import os
import resource
import signal
import sys
import threading
from multiprocessing.util import Finalize
from pathlib import Path

SAVES = {"CheckpointWriter._write", "save_weights"}


class Instants:
    """Counts instants, all or those inside a save, and acts once at a given one."""

    def __init__(self, act, at, inside):
        self.act, self.at, self.inside = act, at, inside
        self.all = self.in_saves = 0
        self.here = threading.local()  # saves are written beside the step, which goes on

    def __call__(self, frame, event, arg):
        name, depth = frame.f_code.co_qualname, getattr(self.here, "depth", 0)
        depth += name in SAVES and event == "call"
        self.all += 1
        self.in_saves += depth > 0
        if (self.in_saves if self.inside else self.all) == self.at:
            self.at = None
            self.act()
        self.here.depth = depth - (name in SAVES and event == "return")


def number_instants(told):
    """Write (all instants, those inside a save) to a file when the run ends."""
    instants = Instants(None, None, False)
    # multiprocessing ends its processes without atexit.
    Finalize(None, lambda: Path(told).write_text(f"{instants.all} {instants.in_saves}"), (), {}, 1)
    watch_all_threads(instants)


def signal_at(number, at, inside, saved):
    """Send this process a signal at an instant; note where each save that was complete stood."""
    instants = Instants(lambda: os.kill(os.getpid(), number), at, inside)
    watch_all_threads(_noting(instants, saved))


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

    watch_all_threads(_noting(watch, saved))


def watch_all_threads(watch):
    """Call it at every instant of this thread and of those that begin from now on."""
    threading.setprofile(watch)
    sys.setprofile(watch)


def _noting(watch, saved):
    def both(frame, event, arg):
        watch(frame, event, arg)
        if event == "return" and frame.f_code.co_qualname == "Snapshot.write":
            now = frame.f_locals["self"].facts.get("progress")
            if now is None:  # weights alone
                return
            Path(saved).write_text(f"{now['epoch']} {now['step']}")

    return both
