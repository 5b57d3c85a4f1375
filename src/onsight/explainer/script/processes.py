"""Processes of a run, found by a mark in their environment and ended, daemons too."""

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

MARK = "ONSIGHT_EXPLAINED_RUN"  # inherited by everything that a script starts
_PROCESSES = Path("/proc")
_ROUNDS = 100  # a process may start another one just before it ends
_PAUSE_SECONDS = 0.01


def end_marked(mark: str, spared: Collection[int] = ()) -> None:
    """Kill every process with this mark, whatever group it is in.

    It does nothing on a system without /proc.
    """
    for _ in range(_ROUNDS):
        found = set(marked(mark)) - set(spared) - {os.getpid()}
        if not found:
            return
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def marked(mark: str) -> list[int]:
    """The processes with this mark."""
    entry = f"{MARK}={mark}".encode()
    return [int(folder.name) for folder in _PROCESSES.glob("[0-9]*") if entry in _entries(folder)]


def _entries(process: Path) -> list[bytes]:
    try:
        return (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []
