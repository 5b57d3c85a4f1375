"""Read an image file in one go, but only if it is a regular file of plausible size."""

import os

from onsight.errors import ImageError
from onsight.limits import IMAGE_FILE_BYTES
from onsight.untrusted import open_regular


def read_regular_file(path: str) -> bytes:
    """Return all bytes of a regular file.

    Raises ImageError for any other, unreadable or empty file, or one over 512 MB.
    """
    try:
        descriptor = open_regular(path)
        try:
            size = check_size(os.fstat(descriptor).st_size)
            content = os.read(descriptor, size)  # a file object would take twice as many calls
            while len(content) < size and (more := os.read(descriptor, size - len(content))):
                content += more
            return content
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
