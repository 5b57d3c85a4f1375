"""The members of a zip, read in place."""

import bz2
import contextlib
import stat
import zipfile
import zlib
from copy import copy
from dataclasses import dataclass
from typing import IO

from onsight.data.sources.archive_members import Members
from onsight.data.sources.read_file import check_size
from onsight.errors import ImageError
from onsight.limits import COMPRESSION_RATIO

_UTF8 = 0x800  # among the general purpose flags, APPNOTE.TXT 4.4.4
_UNIX = 3  # the system whose file modes are in the upper half of external_attr
_RATIO_FREE_BYTES = 10_000_000
_LZMA_CHUNK_BYTES = 4096  # which may become 30 MB


@dataclass(frozen=True)
class ZipReader:
    """Reads usable member i; any number of threads can do so at once.

    The caller opened the file, so zipfile never closes it by itself: zipfile's count of open
    members is not thread-safe, but its reading is.
    """

    archive: zipfile.ZipFile
    infos: list[zipfile.ZipInfo]

    def __call__(self, member: int) -> bytes:
        """The bytes of a member. Raises ImageError."""
        info = self.infos[member]
        _refuse(info)
        try:
            return _read(self.archive, info)
        except Exception as error:  # decompressors raise many kinds of errors on damaged members
            raise ImageError(f"cannot be read from the archive: {error}") from error


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member, decompressed hardly further than to the size it declares."""
    if info.compress_type == zipfile.ZIP_BZIP2:
        return _read_bzip2(archive, info)
    # zipfile bounds what comes out of deflate, but with LZMA only what goes in.
    step = _LZMA_CHUNK_BYTES if info.compress_type == zipfile.ZIP_LZMA else max(1, info.file_size)
    with archive.open(info) as member:
        return b"".join(iter(lambda: member.read(step), b""))


def _read_bzip2(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The same for bzip2, of which zipfile would decompress whole blocks, 20,000 times as large."""
    stored = copy(info)
    stored.compress_type, stored.file_size = zipfile.ZIP_STORED, info.compress_size
    stored.CRC = None  # type: ignore[assignment]  # it is that of the content
    content = bz2.BZ2Decompressor().decompress(archive.read(stored), info.file_size + 1)
    if len(content) != info.file_size or zlib.crc32(content) != info.CRC:
        raise zipfile.BadZipFile("its content is not what its header says")
    return content


def open_zip(file: IO[bytes]) -> tuple[Members, ZipReader]:
    """The usable members of a zip and their reader.

    Raises what zipfile raises for a broken archive; DataError if there are too many members.
    """
    archive = zipfile.ZipFile(file)
    members = Members()
    files = (info for info in archive.infolist() if not _is_folder(info))
    infos = [info for info in files if members.admit(_name(info), _refusal(info))]
    return members, ZipReader(archive, infos)


def _refuse(info: zipfile.ZipInfo) -> None:
    """Raise ImageError for a member that is not safe to decompress."""
    size = check_size(info.file_size)
    if size > _RATIO_FREE_BYTES and size > COMPRESSION_RATIO * info.compress_size:
        raise ImageError(
            f"suspiciously compressed: {size / 1e6:,.0f} MB in {info.compress_size:,} bytes"
        )


def _name(info: zipfile.ZipInfo) -> str:
    """A member's name; unmarked UTF-8, as macOS writes it, is recognised."""
    name = info.filename
    if not name.isascii() and not info.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    return name.replace("\\", "/")


def _mode(info: zipfile.ZipInfo) -> int:
    return info.external_attr >> 16 if info.create_system == _UNIX else 0


def _is_folder(info: zipfile.ZipInfo) -> bool:
    return info.is_dir() or stat.S_ISDIR(_mode(info))


def _refusal(info: zipfile.ZipInfo) -> str:
    """Why a member's kind cannot be used, or nothing."""
    mode = _mode(info)
    if stat.S_ISLNK(mode):
        return "a link"
    return "not a regular file" if stat.S_IFMT(mode) not in (0, stat.S_IFREG) else ""
