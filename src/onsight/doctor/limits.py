"""Limits that containers and shells often set low: shared memory and open files."""

import shutil
from pathlib import Path

from onsight.doctor.line import Line
from onsight.words import gib

_SHARED = Path("/dev/shm")
_ENOUGH_SHARED_BYTES = 1 << 30
_ENOUGH_FILES = 1024
_MANY_FILES = 4096


def check_shared_memory() -> Line | None:
    """Free space in /dev/shm, which DataLoader workers need; None where it does not exist."""
    if not _SHARED.exists():
        return None
    room = shutil.disk_usage(_SHARED)
    figures = {"total_bytes": room.total, "free_bytes": room.free}
    if min(room.total, room.free) >= _ENOUGH_SHARED_BYTES:
        return Line("ok", f"{gib(room.free)} free in {_SHARED}.", "", figures)
    return Line(
        "warning",
        f"Only {gib(room.free)} of {gib(room.total)} free in {_SHARED}. Onsight decodes in "
        "threads and does not need it, but a DataLoader with worker processes fails without it.",
        "Give the container more:\ndocker run --shm-size 8g ...",
        figures,
    )


def check_open_files() -> Line | None:
    """How many files a process may have open; None where there is no such limit."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    figures = {
        "soft": None if soft == unlimited else soft,
        "hard": None if hard == unlimited else hard,
    }
    if soft == unlimited or soft >= _ENOUGH_FILES:
        count = "any number of" if soft == unlimited else f"{soft:,}"
        return Line("ok", f"A process may open {count} files.", "", figures)
    more = _MANY_FILES if hard == unlimited else min(hard, _MANY_FILES)
    return Line(
        "warning",
        f"A process may open only {soft:,} files; several ranks or workers can need more.",
        f"Raise the limit in this shell:\nulimit -n {more}"
        if more > soft
        else "Ask the machine's administrator to raise the limit on open files (nofile).",
        figures,
    )
