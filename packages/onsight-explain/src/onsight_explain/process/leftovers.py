"""Finds and ends processes that a script has left behind, also those that have left its group."""

import contextlib
import os
import secrets
import signal
from pathlib import Path

_VARIABLE = "ONSIGHT_EXPLAINS"
_LOOKS = 3  # a process may start another one while we look


def new_mark() -> dict[str, str]:
    """An environment variable that all processes of one script inherit, however they start."""
    return {_VARIABLE: secrets.token_hex(16)}


def own_mark() -> dict[str, str]:
    """The mark of this process and of all others of its script."""
    return {_VARIABLE: os.environ[_VARIABLE]}


def end_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process and to those that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def end_marked(mark: dict[str, str]) -> None:
    """End every process with this mark; nothing where the system does not show environments."""
    (value,) = mark.values()
    for _ in range(_LOOKS):
        found = [pid for pid in _processes() if value.encode() in _environment(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _processes() -> list[int]:
    proc = Path("/proc")
    names = (path.name for path in proc.iterdir()) if proc.is_dir() else ()
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # not ours, or gone
        return b""
