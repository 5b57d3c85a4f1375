"""A lock that processes share, held on a file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onsight.files import disk_errors


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, if the system has locks; False if another process does.

    The file is made if it is missing and is never removed. Raises DiskError.
    """
    try:
        import fcntl  # not on Windows
    except ImportError:
        yield True
        return
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A link in its place must neither be followed nor what it leads to be emptied.
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
        os.close(descriptor)  # which releases the lock
