"""Paths that another program lists, such as `find`."""

import os
from collections.abc import Iterator
from typing import BinaryIO

from onsight.errors import DataError

_HEAD_BYTES = 2**13  # longer than any path: the first NUL of a list with NULs is among them
_BLOCK_BYTES = 2**16
_PATH_BYTES = 2**16


def listed_paths(file: BinaryIO) -> Iterator[str]:
    """The paths in a list: each ends with NUL if there is a NUL, else with the line.

    Raises DataError for what is not a list of paths.
    """
    rest = file.read(_HEAD_BYTES)
    end = b"\0" if b"\0" in rest else b"\n"
    more = rest
    while more:
        *paths, rest = rest.split(end)
        if len(rest) > _PATH_BYTES:
            raise DataError("stdin is not a list of paths, one a line or each ended by NUL")
        yield from (_decoded(path, end) for path in paths if path)
        more = file.read(_BLOCK_BYTES)
        rest += more
    if rest:
        yield _decoded(rest, end)


def _decoded(path: bytes, end: bytes) -> str:
    return os.fsdecode(path.removesuffix(b"\r") if end == b"\n" else path)
