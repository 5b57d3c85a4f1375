"""The members of a plain tar or a zip: which are usable, and how to read them in place."""

import bz2
import contextlib
import os
import re
import stat
import sys
import tarfile
import zipfile
import zlib
from array import array
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Self

from onsight.data.index import Problem
from onsight.data.sources.folder import is_hidden
from onsight.data.sources.read_file import check_size
from onsight.data.sources.tar_headers import TarFileHeader, ends_at, read_ordinary_headers
from onsight.errors import DataError, ImageError
from onsight.limits import ARCHIVE_MEMBERS, COMPRESSION_RATIO, TAR_ATTRIBUTE_BYTES

_SEPARATORS = re.compile(r"[/\\]")
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
_ENCRYPTED, _UTF8 = 0x1, 0x800  # bits in a zip member's flags, APPNOTE.TXT 4.4.4
_UNIX = 3  # create_system of zips with file modes in the upper half of external_attr
_RATIO_FREE_BYTES = 10_000_000  # member size up to which any ratio is allowed
_PAX_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LZMA_CHUNK_BYTES = 4096  # compressed input per call; can decompress to 30 MB


class BrokenTar(Exception):
    """The archive is damaged or truncated."""


class _BoundedHeader(tarfile.TarInfo):
    """A header whose extended attributes are small: tarfile's time grows with their square."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        info = super().frombuf(buf, encoding, errors)
        if info.type in _PAX_TYPES and info.size > TAR_ATTRIBUTE_BYTES:
            raise tarfile.HeaderError(
                f"{info.size:,} bytes of extended attributes before a member; write it again "
                "without them, as with tar --no-xattrs"
            )
        return info


@dataclass
class Members:
    """The paths of usable members in the archive's order, and the rejected members."""

    paths: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    hidden: int = 0
    _seen: set[str] = field(default_factory=set)

    def admit(self, name: str, refusal: str = "") -> bool:
        """Add a member that is not a folder to the paths, and return whether it is usable.

        refusal: the reason its kind cannot be used, or nothing. Raises DataError if there
        are too many members.
        """
        parts = [part for part in name.split("/") if part not in ("", ".")]
        path = "/".join(parts)
        reason = _find_danger(name, path)
        if not reason and any(is_hidden(part) for part in parts):
            self.hidden += 1
            return False
        repetition = "appears twice in the archive" if path in self._seen else ""
        reason = reason or refusal or repetition
        if reason:
            self.problems.append(Problem(name.replace("\0", "\\0"), "scan", reason))
            return False
        self._seen.add(path)
        self.paths.append(path)
        if len(self.paths) > ARCHIVE_MEMBERS:
            raise DataError(
                f"the archive has more than {ARCHIVE_MEMBERS:,} members; "
                "unpack it and give the folder instead"
            )
        return True


@dataclass(frozen=True)
class TarReader:
    """Read usable member i. Safe for threads, as pread does not share a file position."""

    descriptor: int
    offsets: "array[int]"
    sizes: "array[int]"

    def __call__(self, member: int) -> bytes:
        """Return the bytes of a member. Raises ImageError."""
        size = check_size(self.sizes[member])
        try:
            data = os.pread(self.descriptor, size, self.offsets[member])
        except OSError as error:
            raise ImageError(f"cannot be read: {error.strerror}") from error
        if len(data) < size:
            raise ImageError("the archive was truncated after it was opened")
        return data


def open_tar(file: IO[bytes]) -> tuple[Members, TarReader]:
    """Return the usable members of an uncompressed tar and their reader.

    Raises BrokenTar; DataError if there are too many members.
    """
    members, offsets, sizes = Members(), array("q"), array("q")
    for header, refusal in _tar_files(file):
        if members.admit(header.name, refusal):
            offsets.append(header.offset)
            sizes.append(header.size)
    return members, TarReader(file.fileno(), offsets, sizes)


def open_zip(file: IO[bytes]) -> tuple[Members, Callable[[int], bytes]]:
    """Return the usable members of a zip, and a function that reads one of them in any thread.

    Raises zipfile's exceptions for a broken archive; DataError if there are too many members.
    """
    # The caller opened the file, so zipfile never closes it: its count of open members is not
    # thread-safe, but its reading is.
    archive = zipfile.ZipFile(file)
    members = Members()
    files = (info for info in archive.infolist() if not _is_zip_folder(info))
    infos = [info for info in files if members.admit(_decode_zip_name(info), _refuse_zip(info))]

    def read(member: int) -> bytes:
        """Return the bytes of a member. Raises ImageError."""
        info = infos[member]
        _refuse_bomb(info)
        if info.flag_bits & _ENCRYPTED:
            raise ImageError("encrypted; unpack the archive and give the folder instead")
        try:
            return _read_zip_member(archive, info)
        except Exception as error:  # decompressors raise many kinds of errors on damaged members
            raise ImageError(f"cannot be read from the archive: {error}") from error

    return members, read


def read_first_names(file: IO[bytes], count: int) -> list[str]:
    """Return the names of the first members of a tar. Raises BrokenTar."""
    return [info.name for info in islice(_tar_infos(file), count)]


def _find_danger(name: str, path: str) -> str:
    """Return the reason a name is unsafe, or nothing."""
    if _ABSOLUTE.match(name):
        return "absolute path"
    if "\0" in name:
        return "has a NUL in its name"
    if ".." in _SEPARATORS.split(name):
        return "leads out of the archive ('..')"
    return "" if path else "has no name"


def _tar_files(file: IO[bytes]) -> Iterator[tuple[TarFileHeader, str]]:
    """Yield each member that is not a folder, and the reason to refuse it. Raises BrokenTar."""
    headers = read_ordinary_headers(file.fileno())
    if headers is not None:
        yield from ((header, "") for header in headers)
        return
    for info in _tar_infos(file):
        if not info.isdir():
            yield TarFileHeader(info.name, info.offset_data, info.size), _refuse_tar(info)
    end = file.tell()  # where the last header is, which is all zeros
    if not ends_at(file.fileno(), end):
        raise BrokenTar(
            f"it goes on after the end mark at byte {end:,}, so a part of it was never written, or "
            "it is several tars in one"
        )


def _tar_infos(file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield every member's header, up to the end mark.

    TarFile's own iteration treats a damaged header as the end, and keeps all members in memory.
    """
    try:
        archive = tarfile.TarFile(fileobj=file, encoding="utf-8", tarinfo=_BoundedHeader)
        position = 0
        while _has_next_header(file, position):
            info = _BoundedHeader.fromtarfile(archive)
            # archive.offset is the next header's offset; a damaged size may be negative or huge.
            if not position < archive.offset <= sys.maxsize:
                raise BrokenTar(f"{info.name} has a negative size, or one over 2^63 bytes")
            position = archive.offset
            yield info
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, MemoryError) as error:
        raise BrokenTar(str(error) or type(error).__name__) from error


def _has_next_header(file: IO[bytes], position: int) -> bool:
    """Return whether a header, not the end mark, is at an offset; seeks to it."""
    file.seek(position)
    block = file.read(tarfile.BLOCKSIZE)
    if not block:
        raise BrokenTar("it has no end mark, so it is truncated")
    file.seek(position)
    return block.count(0) < len(block)


def _refuse_tar(info: tarfile.TarInfo) -> str:
    """Return why a member's kind cannot be used, or nothing."""
    if info.issym() or info.islnk():
        return "a link"
    if info.issparse():
        return "stored as a sparse file"
    return "" if info.isreg() else "not a regular file"


def _refuse_zip(info: zipfile.ZipInfo) -> str:
    """Return why a member's kind cannot be used, or nothing."""
    mode = _unix_mode(info)
    if info.is_dir() or stat.S_ISDIR(mode):
        return "a folder with content"
    if stat.S_ISLNK(mode):
        return "a link"
    return "not a regular file" if stat.S_IFMT(mode) not in (0, stat.S_IFREG) else ""


def _refuse_bomb(info: zipfile.ZipInfo) -> None:
    """Raise ImageError for a member that is not safe to decompress."""
    size = check_size(info.file_size)
    if size > _RATIO_FREE_BYTES and size > COMPRESSION_RATIO * info.compress_size:
        raise ImageError(
            f"suspiciously compressed: {size / 1e6:,.0f} MB in {info.compress_size:,} bytes"
        )


def _read_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Decompress a member to hardly more than the size it declares."""
    if info.compress_type == zipfile.ZIP_BZIP2:
        return _read_bzip2(archive, info)
    # zipfile limits the output of deflate, but only the input of LZMA.
    step = _LZMA_CHUNK_BYTES if info.compress_type == zipfile.ZIP_LZMA else max(1, info.file_size)
    with archive.open(info) as member:
        return b"".join(iter(lambda: member.read(step), b""))


def _read_bzip2(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """Decompress a bzip2 member here: zipfile decompresses whole blocks, up to 20,000 times."""
    stored = copy(info)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, info.compress_size
    stored.CRC = None  # type: ignore[assignment]  # the checksum covers the decompressed content
    content = bz2.BZ2Decompressor().decompress(archive.read(stored), info.file_size + 1)
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise zipfile.BadZipFile("its content does not match its header")
    return content


def _decode_zip_name(info: zipfile.ZipInfo) -> str:
    """Return a member's name, also for UTF-8 without the flag, as macOS writes zips."""
    name = info.filename
    if not name.isascii() and not info.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def _is_zip_folder(info: zipfile.ZipInfo) -> bool:
    return not info.file_size and (info.is_dir() or stat.S_ISDIR(_unix_mode(info)))


def _unix_mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16 if info.create_system == _UNIX else 0
