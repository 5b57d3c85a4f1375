"""The cache folder: where it is, what its entries depend on, and how processes share it."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from onsight.errors import ConfigError, DataError, DiskError, OutputError
from onsight.files import disk_errors, user_path, write_json
from onsight.untrusted import read_json

NO_CACHE = "none"

T = TypeVar("T")


def find_cache_folder(requested: str = "") -> Path | None:
    """Return the requested folder, else $ONSIGHT_CACHE, else the user's own; None for "none".

    Raises ConfigError for a file, or if the user has no home folder.
    """
    if requested == NO_CACHE:
        return None
    chosen = requested or os.environ.get("ONSIGHT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        folder = user_path(chosen) if chosen else user_path(base) / "onsight"
    except OutputError as error:
        raise ConfigError(f"{error}; set --cache-folder, or ONSIGHT_CACHE") from error
    if folder.is_file():
        raise ConfigError(
            f"the cache folder {folder} is a file; choose another with --cache-folder, or "
            "ONSIGHT_CACHE"
        )
    return folder


def cached_json_path(cache_folder: Path, kind: str, version: int, key: Any) -> Path:
    """Return the file of a cached JSON value.

    kind: the subfolder; version: increased when the same key may lead to another value; key: JSON
    of everything that the value depends on.
    """
    digest = hashlib.sha256(json.dumps([version, key], sort_keys=True).encode()).hexdigest()
    return cache_folder / kind / f"{digest[:32]}.json"


def read_cached_json(path: Path, parse: Callable[[Any], T | None]) -> T | None:
    """Return a cached value, or None if there is none or it cannot be read.

    parse raises LookupError, TypeError, ValueError or OverflowError for a value that differs from
    the written one.
    """
    try:
        return parse(read_json(path, "surrogateescape"))
    except (DataError, ValueError, LookupError, TypeError, OverflowError):
        return None


def write_cached_json(path: Path, value: Any) -> OSError | DiskError | None:
    """Cache a value; return the error if the disk does not allow it.

    That must not end a run: the next one computes the value again.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)
    except (OSError, DiskError) as error:
        return error
    return None


def file_state(path: Path) -> tuple[str, int, int, int, int]:
    """Return a file's path, and facts that change when its content does."""
    return str(path), *_content_facts(path.stat())


def file_state_bytes(path: str, stat: os.stat_result) -> bytes:
    """Return a file's path and the facts that change when its content does, as bytes."""
    text = "".join(f"{fact}\0" for fact in (path, *_content_facts(stat)))
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold a lock that processes share; yield False if another one holds it and wait is False.

    The lock is held on a file, which is created if it is missing and is never removed. On systems
    without file locks it is always granted. Raises DiskError.
    """
    try:
        import fcntl  # not on Windows
    except ImportError:
        yield True
        return
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A symbolic link in its place must not be followed, nor its target be emptied.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)  # also releases the lock


def _content_facts(stat: os.stat_result) -> tuple[int, int, int, int]:
    # A program can reset the modification time, but neither the change time nor the inode.
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
