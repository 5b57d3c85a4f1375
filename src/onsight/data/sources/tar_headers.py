"""A fast reader of ordinary tar headers: making a TarInfo for each header takes most of the time.

Ordinary members are regular files and folders whose fields follow POSIX, also behind pax headers
with only times and owners, as webdataset writes them. An archive with anything else is left to
tarfile, so this module need not agree with tarfile on unusual headers.
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
_CHECKED_AT_ONCE = 4096  # number of headers whose numeric fields are checked in one array
_PAX_RECORD = re.compile(rb"([0-9]{1,3}) ([a-z]+)=")
_HARMLESS_KEYS = {b"mtime", b"atime", b"ctime", b"uid", b"gid", b"uname", b"gname"}
_MAX_PAX_BYTES = 8 * _BLOCK
_MAX_PADDING_BYTES = 2**20  # zeros at the end, which fill up a record: usually 10 kB


class TarFileHeader(NamedTuple):
    """A regular file in a tar."""

    name: str
    offset: int  # bytes from the archive's start to the content
    size: int  # bytes of content


def read_ordinary_headers(descriptor: int) -> list[TarFileHeader] | None:
    """Return the regular files of a whole tar in order, or None if anything is not ordinary."""
    headers: list[TarFileHeader] = []
    blocks: list[bytes] = []
    position, is_after_pax = 0, False
    while (block := os.pread(descriptor, _BLOCK, position)) != _END:
        size = _parse_size(block)
        if size is None or len(headers) > ARCHIVE_MEMBERS:
            return None
        blocks.append(block)
        position += _BLOCK
        kind = block[_TYPE]
        if kind in _FILES:
            name = _parse_name(block)
            if name.endswith("/"):  # a folder in the oldest format
                return None
            headers.append(TarFileHeader(name, position, size))
        elif kind == _PAX:
            if size > _MAX_PAX_BYTES or not _is_harmless(os.pread(descriptor, size, position)):
                return None
        elif kind != _FOLDER or size:
            return None
        is_after_pax = kind == _PAX
        position += -(-size // _BLOCK) * _BLOCK
        if len(blocks) == _CHECKED_AT_ONCE:
            if not _are_valid(blocks):
                return None
            blocks.clear()
    is_whole = not is_after_pax and ends_at(descriptor, position)
    return headers if is_whole and _are_valid(blocks) else None


def ends_at(descriptor: int, position: int) -> bool:
    """Return whether a block of zeros is the end mark: a hole in the file has them, too."""
    rest = os.pread(descriptor, _MAX_PADDING_BYTES + 1, position)
    return rest.count(0) == len(rest) <= _MAX_PADDING_BYTES


def _parse_size(block: bytes) -> int | None:
    """Return the bytes of a member's content, or None if the field is not plain octal."""
    digits = block[_SIZE].rstrip(b"\0 ")
    if len(block) < _BLOCK or not digits.isdigit():
        return None
    try:
        return int(digits, 8)
    except ValueError:
        return None


def _parse_name(block: bytes) -> str:
    name = block[_NAME].partition(b"\0")[0]
    if block[_PREFIX.start]:
        name = block[_PREFIX].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _is_harmless(records: bytes) -> bool:
    """Return whether the records of a pax header leave the place and name of a file unchanged."""
    position = 0
    while position < len(records):
        record = _PAX_RECORD.match(records, position)
        if record is None or record[2] not in _HARMLESS_KEYS:
            return False
        end = position + int(record[1])
        if end <= record.end() or records[end - 1 : end] != b"\n":
            return False
        position = end
    return True


def _are_valid(blocks: list[bytes]) -> bool:
    """Return whether the headers' checksums are right and their octal fields are well formed."""
    table = np.frombuffer(b"".join(blocks), np.uint8).reshape(-1, _BLOCK)
    for field in _OCTAL:
        digits = (table[:, field] >= _ZERO) & (table[:, field] <= _SEVEN)
        ends = (table[:, field] == 0) | (table[:, field] == _SPACE)
        if not (digits | ends).all() or (ends[:, :-1] & digits[:, 1:]).any():
            return False
    stored = np.zeros(len(table), np.int64)
    checksums = table[:, _CHECKSUM]
    for column in checksums.T:
        stored = np.where(column >= _ZERO, 8 * stored + column - _ZERO, stored)
    spaces = checksums.shape[1] * _SPACE  # the checksum field itself counts as spaces
    total = table.sum(axis=1, dtype=np.int64) - checksums.sum(axis=1, dtype=np.int64) + spaces
    return bool((stored == total).all())
