"""The headers of an ordinary tar, read without a TarInfo for each, which takes most of the time.

Ordinary are regular files and folders whose fields are as POSIX wants them, also behind pax headers
that tell but times and owners, as webdataset writes them. Whatever else an archive holds is left to
tarfile, so nothing here knows what tarfile makes of it.
Source: https://pubs.opengroup.org/onlinepubs/9799919799/utilities/pax.html (ustar and pax formats).
"""

import os
import re
from typing import NamedTuple

import numpy as np

from onsight.limits import ARCHIVE_MEMBERS

_BLOCK = 512
_END = bytes(_BLOCK)
_NAME, _PREFIX = slice(0, 100), slice(345, 500)
_SIZE, _CHECKSUM = slice(124, 136), slice(148, 156)
_OCTAL = [_SIZE, _CHECKSUM, slice(100, 108), slice(108, 116), slice(116, 124), slice(136, 148)]
_OCTAL += [slice(329, 337), slice(337, 345)]
_TYPE = 156
_FILES, _FOLDER, _PAX = frozenset(b"0\0"), ord("5"), ord("x")
_ZERO, _SEVEN, _SPACE = b"07 "
_CHECKED = 4096  # headers whose numbers are checked at once
_RECORD = re.compile(rb"([0-9]{1,3}) ([a-z]+)=")
_HARMLESS = {b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"}
_MOST_PAX = 8 * _BLOCK


class TarFileHeader(NamedTuple):
    """A regular file in a tar: its name, where its content begins, and how long it is."""

    name: str
    offset: int
    size: int


def ordinary_headers(descriptor: int) -> list[TarFileHeader] | None:
    """The regular files of a whole tar, in its order; None if anything in it is not ordinary."""
    found: list[TarFileHeader] = []
    blocks: list[bytes] = []
    place, is_after_pax = 0, False
    while (block := os.pread(descriptor, _BLOCK, place)) != _END:
        size = _size(block)
        if size is None or len(found) > ARCHIVE_MEMBERS:
            return None
        blocks.append(block)
        place += _BLOCK
        kind = block[_TYPE]
        if kind in _FILES:
            name = _name(block)
            if name.endswith("/"):  # a folder of the oldest format
                return None
            found.append(TarFileHeader(name, place, size))
        elif kind == _PAX:
            if size > _MOST_PAX or not _is_harmless(os.pread(descriptor, size, place)):
                return None
        elif kind != _FOLDER or size:
            return None
        is_after_pax = kind == _PAX
        place += -(-size // _BLOCK) * _BLOCK
        if len(blocks) == _CHECKED:
            if not _are_sound(blocks):
                return None
            blocks.clear()
    return found if not is_after_pax and _are_sound(blocks) else None


def _size(block: bytes) -> int | None:
    """The bytes of a member's content; None where the field is not plainly octal."""
    digits = block[_SIZE].rstrip(b"\0 ")
    if len(block) < _BLOCK or not digits.isdigit():
        return None
    try:
        return int(digits, 8)
    except ValueError:
        return None


def _name(block: bytes) -> str:
    name = block[_NAME].partition(b"\0")[0]
    if block[_PREFIX.start]:
        name = block[_PREFIX].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _is_harmless(records: bytes) -> bool:
    """Whether the records of a pax header say nothing about where a file is or how it is called."""
    place = 0
    while place < len(records):
        found = _RECORD.match(records, place)
        if found is None or found[2] not in _HARMLESS:
            return False
        end = place + int(found[1])
        if end <= found.end() or records[end - 1 : end] != b"\n":
            return False
        place = end
    return True


def _are_sound(blocks: list[bytes]) -> bool:
    """Whether the checksums of headers are right and their numbers are digits up to an end."""
    table = np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, _BLOCK)
    for field in _OCTAL:
        digits = (table[:, field] >= _ZERO) & (table[:, field] <= _SEVEN)
        ends = (table[:, field] == 0) | (table[:, field] == _SPACE)
        if not (digits | ends).all() or (ends[:, :-1] & digits[:, 1:]).any():
            return False
    said = np.zeros(len(table), np.int64)
    checksums = table[:, _CHECKSUM]
    for column in checksums.T:
        said = np.where(column >= _ZERO, 8 * said + column - _ZERO, said)
    spaces = checksums.shape[1] * _SPACE  # which stand in the field while it is computed
    total = table.sum(axis=1, dtype=np.int64) - checksums.sum(axis=1, dtype=np.int64) + spaces
    return bool((said == total).all())
