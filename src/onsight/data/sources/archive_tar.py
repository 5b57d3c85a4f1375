"""The members of a plain tar, read in place by their offsets."""

import os
import tarfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO

from onsight.data.sources.archive_members import Members
from onsight.data.sources.read_file import check_size
from onsight.data.sources.tar_headers import TarFileHeader, ordinary_headers
from onsight.errors import ImageError


class BrokenTar(Exception):
    """The archive is damaged or cut short."""


@dataclass(frozen=True)
class TarReader:
    """Reads usable member i; safe for threads, as pread does not share a file position."""

    descriptor: int
    offsets: "array[int]"
    sizes: "array[int]"

    def __call__(self, member: int) -> bytes:
        """The bytes of a member. Raises ImageError."""
        size = check_size(self.sizes[member])
        try:
            data = os.pread(self.descriptor, size, self.offsets[member])
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror}") from error
        if len(data) < size:
            raise ImageError("the archive has been cut short since it was opened")
        return data


def open_tar(file: IO[bytes]) -> tuple[Members, TarReader]:
    """The usable members of an uncompressed tar and their reader.

    Raises BrokenTar; DataError if there are too many members.
    """
    members, offsets, sizes = Members(), array("q"), array("q")
    for header, refusal in _files(file):
        if members.admit(header.name, refusal):
            offsets.append(header.offset)
            sizes.append(header.size)
    return members, TarReader(file.fileno(), offsets, sizes)


def first_names(file: IO[bytes], most: int) -> list[str]:
    """The names of the first members. Raises BrokenTar."""
    return [info.name for info in islice(_headers(file), most)]


def _files(file: IO[bytes]) -> Iterator[tuple[TarFileHeader, str]]:
    """What is no folder, and why its kind cannot be used. Raises BrokenTar."""
    headers = ordinary_headers(file.fileno())
    if headers is not None:
        yield from ((header, "") for header in headers)
        return
    for info in _headers(file):
        if not info.isdir():
            yield TarFileHeader(info.name, info.offset_data, info.size), _refusal(info)


def _headers(file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Every member's header, up to the end mark.

    TarFile's own iteration takes a damaged header for the end, and keeps all members in memory.
    """
    try:
        archive = tarfile.TarFile(fileobj=file, encoding="utf-8")
        place = 0
        while _has_more(file, place):
            info = tarfile.TarInfo.fromtarfile(archive)
            if archive.offset <= place:  # the next header's offset; a wrong size may be negative
                raise BrokenTar(f"{info.name} has a negative size")
            place = archive.offset
            yield info
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BrokenTar(str(error) or type(error).__name__) from error


def _has_more(file: IO[bytes], place: int) -> bool:
    """Whether there is a header at an offset, not the end mark; leaves the file there."""
    file.seek(place)
    block = file.read(tarfile.BLOCKSIZE)
    if not block:
        raise BrokenTar("it has no end mark, so it was cut short")
    file.seek(place)
    return block.count(0) < len(block)


def _refusal(info: tarfile.TarInfo) -> str:
    """Why a member's kind cannot be used, or nothing."""
    if info.issym() or info.islnk():
        return "a link"
    if info.issparse():
        return "stored as a sparse file"
    return "" if info.isreg() else "not a regular file"
