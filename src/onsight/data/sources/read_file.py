"""Read an image file in one go, but only if it is a regular file of plausible size."""

import os
import stat

from onsight.errors import ImageError
from onsight.limits import IMAGE_FILE_BYTES

# O_NONBLOCK: a FIFO in place of an image must not hang the run.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def read_regular_file(path: str) -> bytes:
    """Return all bytes of a regular file.

    Raises ImageError for any other, unreadable or empty file, or one over 512 MB.
    """
    try:
        descriptor = os.open(path, _FLAGS)
        try:
            return _read(descriptor, _check_file(os.fstat(descriptor)))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error


def check_size(size: int) -> int:
    """Return an image's size in bytes. Raises ImageError if it is zero or over the limit."""
    if size == 0:
        raise ImageError("empty file (0 bytes)")
    if size > IMAGE_FILE_BYTES:
        raise ImageError(f"{size / 2**20:,.0f} MB is over the limit of 512 MB for one image")
    return size


def _read(descriptor: int, size: int) -> bytes:
    """Read up to `size` bytes. A file object would double the number of system calls."""
    content = os.read(descriptor, size)
    while len(content) < size and (more := os.read(descriptor, size - len(content))):
        content += more
    return content


def _check_file(facts: os.stat_result) -> int:
    """Return the size in bytes. Raises ImageError unless this is a regular file."""
    if not stat.S_ISREG(facts.st_mode):
        raise ImageError("not a regular file")
    return check_size(facts.st_size)
