"""Instants of a run: the calls and returns of all functions, including those in C, counted.

An action at an instant happens at the same point of the program every time. The functions here run
in the process of a trial.
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
    """Counts all instants, or those inside a save, and acts once, at a given one."""

    def __init__(self, act, at, inside):
        self.act, self.at, self.inside = act, at, inside
        self.all = self.in_saves = 0
        self.here = threading.local()  # saves are written in the background

    def __call__(self, frame, event, arg):
        name, depth = frame.f_code.co_qualname, getattr(self.here, "depth", 0)
        depth += name in SAVES and event == "call"
        self.all += 1
        self.in_saves += depth > 0
        if (self.in_saves if self.inside else self.all) == self.at:
            self.at = None
            self.act()
        self.here.depth = depth - (name in SAVES and event == "return")


def number_instants(notes):
    """Write the numbers of instants (all, inside saves) to a file when the run ends."""
    instants = Instants(None, None, False)
    # multiprocessing ends its processes without atexit.
    Finalize(None, lambda: Path(notes).write_text(f"{instants.all} {instants.in_saves}"), (), {}, 1)
    watch_all_threads(instants)


def signal_at(number, at, inside, saved):
    """Signal this process at an instant; record the progress in each completed save."""
    instants = Instants(lambda: os.kill(os.getpid(), number), at, inside)
    watch_all_threads(_recording(instants, saved))


def kill_in_write(save, part, saved):
    """Kill this process in a write, when this part of the checkpoint has been written."""
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
        is_cut = event == "c_exception" and arg.__name__ in ("write", "flush")
        if is_cut and saves == save:
            os.kill(os.getpid(), signal.SIGKILL)

    watch_all_threads(_recording(watch, saved))


def watch_all_threads(watch):
    """Call a function at every instant of this thread and of threads that start later."""
    threading.setprofile(watch)
    sys.setprofile(watch)


def _recording(watch, saved):
    def both(frame, event, arg):
        watch(frame, event, arg)
        if event == "return" and frame.f_code.co_qualname == "Snapshot.write":
            now = frame.f_locals["self"].facts.get("progress")
            if now is None:  # it has only weights
                return
            Path(saved).write_text(f"{now['epoch']} {now['step']}")

    return both
