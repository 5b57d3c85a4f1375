"""Checks of disks: free space and speed for decoded images, free space for run folders."""

import os
import shutil
import tempfile
import time
from pathlib import Path

from onsight.data.cache import find_cache_folder
from onsight.doctor.report import CheckResult
from onsight.text import data_size
from onsight_explain.text import rate_words

_FULL_BYTES = 1_000_000_000
_NEARLY_FULL_BYTES = 5_000_000_000
_TEST_BYTES = 64 << 20
_BLOCK_BYTES = 8 << 20
_SLOW_BYTES_PER_SECOND = 50e6
_WALK_SECONDS = 1.0
_MOVE_CACHE = "Put it on another disk:\nexport ONSIGHT_CACHE=/path/to/folder"
_MOVE_RUNS = "Free some space, or choose a folder on another disk with --out."


def check_cache_disk(test_bytes: int = _TEST_BYTES, seconds: float = 1.0) -> CheckResult:
    """Check the free space of the disk for decoded images, and its speed with a temporary file."""
    folder = _cache_folder()
    space = _check_space(folder, _MOVE_CACHE)
    if space.status == "problem":
        return space
    try:
        written, read = _measure_speeds(_nearest_existing(folder), test_bytes, seconds)
    except OSError as error:
        return CheckResult("problem", _cannot_write(folder, error), _MOVE_CACHE, space.figures)
    figures = space.figures | {"write_bytes_per_second": written, "read_bytes_per_second": read}
    message = f"{space.message[:-1]}; writes {rate_words(written)}, reads {rate_words(read)}."
    if min(written, read) < _SLOW_BYTES_PER_SECOND:
        message += " That is slow, as on a network drive or a memory card."
        return CheckResult("warning", message, _MOVE_CACHE, figures)
    return CheckResult(space.status, message, space.remedy, figures)


def check_output_disk() -> CheckResult:
    """Check free space and permission to write in the default folder for runs."""
    folder = Path.cwd() / "runs"
    space = _check_space(folder, _MOVE_RUNS)
    if space.status == "problem":
        return space
    try:
        with tempfile.TemporaryFile(dir=_nearest_existing(folder)):
            return space
    except OSError as error:
        return CheckResult("problem", _cannot_write(folder, error), _MOVE_RUNS, space.figures)


def check_cache(seconds: float = _WALK_SECONDS) -> CheckResult:
    """Measure the size of the cache."""
    folder = _cache_folder()
    files, size, is_complete = _measure_contents(folder, seconds)
    at_least = "" if is_complete else "at least "
    message = (
        f"{folder} holds {at_least}{data_size(size)} in {files:,} files; it is safe to delete."
    )
    if not files:
        message = f"{folder} is empty: the first run on a dataset fills it, later runs reuse it."
    figures = {"folder": str(folder), "bytes": size, "files": files}
    return CheckResult("note", message, figures=figures)


def _cache_folder() -> Path:
    folder = find_cache_folder()
    assert folder is not None  # there is one unless --cache-folder is none
    return folder.absolute()


def _check_space(folder: Path, remedy: str) -> CheckResult:
    free = shutil.disk_usage(_nearest_existing(folder)).free
    figures = {"folder": str(folder), "free_bytes": free}
    message = f"{folder}: {data_size(free)} free."
    if free < _FULL_BYTES:
        text = f"{message} That is too little for most datasets."
        return CheckResult("problem", text, remedy, figures)
    if free < _NEARLY_FULL_BYTES:
        return CheckResult("warning", f"{message} That is little.", remedy, figures)
    return CheckResult("ok", message, "", figures)


def _cannot_write(folder: Path, error: OSError) -> str:
    return f"Cannot write to {folder}: {error.strerror or error}."


def _measure_speeds(folder: Path, test_bytes: int, seconds: float) -> tuple[float, float]:
    """Return (written, read) bytes per second, with each block synced to the disk.

    It takes about the given seconds. The temporary file has no name where the system allows that;
    elsewhere it is removed when closed.
    """
    block = os.urandom(min(_BLOCK_BYTES, test_bytes))  # cannot be compressed
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written, start = 0, time.perf_counter()
        while written < test_bytes and (not written or time.perf_counter() - start < seconds):
            written += file.write(block)
            os.fsync(file.fileno())
        write_seconds = time.perf_counter() - start
        if hasattr(os, "posix_fadvise"):  # drop the page cache, to read from the disk
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        read, start = 0, time.perf_counter()
        while chunk := file.read(len(block)):
            read += len(chunk)
        return written / write_seconds, read / (time.perf_counter() - start)


def _nearest_existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _measure_contents(folder: Path, seconds: float) -> tuple[int, int, bool]:
    """Return (files, bytes, is_complete); counting stops when the time is up."""
    files = size = 0
    deadline = time.monotonic() + seconds
    for parent, _, names in os.walk(folder):
        for name in names:
            files += 1
            size += os.lstat(os.path.join(parent, name)).st_size
            if time.monotonic() > deadline:
                return files, size, False
    return files, size, True
