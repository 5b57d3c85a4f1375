"""Disks: free space and speed where decoded images are kept, free space for run folders."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from onsight.data.cache import find_cache_folder
from onsight.doctor.line import Line
from onsight.words import data_size
from onsight_explain.text import rate_words

_FULL_BYTES = 1_000_000_000
_NEARLY_FULL_BYTES = 5_000_000_000
_TRIED_BYTES = 64 << 20
_BLOCK_BYTES = 8 << 20
_SLOW_BYTES_PER_SECOND = 50e6
_WALK_SECONDS = 1.0
_MOVE_CACHE = "Put it on another disk:\nexport ONSIGHT_CACHE=/path/to/folder"
_MOVE_RUNS = "Free some space, or choose a folder on another disk with --out."


def check_cache_disk(tried_bytes: int = _TRIED_BYTES, seconds: float = 1.0) -> Line:
    """Free space and speed of the disk that keeps decoded images, by a temporary file."""
    folder = _cache()
    line = _room(folder, _MOVE_CACHE)
    if line.state == "problem":
        return line
    try:
        written, read = _speeds(_existing(folder), tried_bytes, seconds)
    except OSError as error:
        return Line("problem", _refused(folder, error), _MOVE_CACHE, line.figures)
    figures = line.figures | {"write_bytes_per_second": written, "read_bytes_per_second": read}
    said = f"{line.said[:-1]}; writes {rate_words(written)}, reads {rate_words(read)}."
    if min(written, read) < _SLOW_BYTES_PER_SECOND:
        said += " That is slow, as on a network drive or a memory card."
        return Line("warning", said, _MOVE_CACHE, figures)
    return Line(line.state, said, line.remedy, figures)


def check_output_disk() -> Line:
    """Free space, and permission to write, in the default folder for runs."""
    folder = Path.cwd() / "runs"
    line = _room(folder, _MOVE_RUNS)
    if line.state == "problem":
        return line
    try:
        with tempfile.TemporaryFile(dir=_existing(folder)):
            return line
    except OSError as error:
        return Line("problem", _refused(folder, error), _MOVE_RUNS, line.figures)


def check_cache(seconds: float = _WALK_SECONDS) -> Line:
    """How much the cache holds."""
    folder = _cache()
    files, size, is_all = _contents(folder, seconds)
    least = "" if is_all else "at least "
    said = f"{folder} holds {least}{data_size(size)} in {files:,} files; it is safe to delete."
    if not files:
        said = f"{folder} is empty: the first run on a dataset decodes it, later runs reuse that."
    return Line("note", said, figures={"folder": str(folder), "bytes": size, "files": files})


def _cache() -> Path:
    folder = find_cache_folder()
    assert folder is not None  # there is a cache unless a run is told to keep none
    return folder.absolute()


def _room(folder: Path, remedy: str) -> Line:
    free = shutil.disk_usage(_existing(folder)).free
    figures = {"folder": str(folder), "free_bytes": free}
    said = f"{folder}: {data_size(free)} free."
    if free < _FULL_BYTES:
        return Line("problem", f"{said} That is too little for most data.", remedy, figures)
    if free < _NEARLY_FULL_BYTES:
        return Line("warning", f"{said} That is little.", remedy, figures)
    return Line("ok", said, "", figures)


def _refused(folder: Path, error: OSError) -> str:
    return f"Nothing can be written to {folder}: {error.strerror or error}."


def _speeds(folder: Path, tried_bytes: int, seconds: float) -> tuple[float, float]:
    """(written, read) bytes per second, each block synced to the disk; seconds is approximate.

    The file has no name where the system allows that; elsewhere it is removed when closed.
    """
    block = os.urandom(min(_BLOCK_BYTES, tried_bytes))  # cannot be compressed
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        written, start = 0, time.perf_counter()
        while written < tried_bytes and (not written or time.perf_counter() - start < seconds):
            written += file.write(block)
            os.fsync(file.fileno())
        write_seconds = time.perf_counter() - start
        if hasattr(os, "posix_fadvise"):  # else it would be read from memory
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        read, start = 0, time.perf_counter()
        while chunk := file.read(len(block)):
            read += len(chunk)
        return written / write_seconds, read / (time.perf_counter() - start)


def _existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _contents(folder: Path, seconds: float) -> tuple[int, int, bool]:
    """(files, bytes, whether that is all) of a folder; counting stops when time is up."""
    files = size = 0
    end = time.monotonic() + seconds
    for entry in _files(str(folder)):
        files += 1
        size += entry.stat(follow_symlinks=False).st_size
        if time.monotonic() > end:
            return files, size, False
    return files, size, True


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path)
        elif entry.is_file(follow_symlinks=False):
            yield entry
