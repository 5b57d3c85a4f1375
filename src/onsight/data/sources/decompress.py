"""Decompressing a tar once, as a stream, into an unnamed temporary file."""

import bz2
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Callable
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from onsight.errors import DataError
from onsight.files import disk_errors
from onsight.limits import COMPRESSION_RATIO

_CHUNK_BYTES = 2**20
_RATIO_FREE_BYTES = 10**9

_OPENERS: dict[bytes, Callable[[Path], BufferedIOBase]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}


def is_compressed(head: bytes) -> bool:
    """Whether a file's first bytes are those of gzip, bzip2 or xz."""
    return head.startswith(tuple(_OPENERS))


def decompress(path: Path, head: bytes, folder: Path | None = None) -> IO[bytes]:
    """The content of a compressed file in an unlinked file that ends with the process.

    folder: where the temporary file is put, the system's own place if None. Raises DiskError;
    DataError for a damaged file or one that grows beyond all measure.
    """
    folder = folder or Path(tempfile.gettempdir())
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        target = tempfile.TemporaryFile(prefix="onsight-", dir=folder)  # noqa: SIM115  # returned
    try:
        _copy(path, head, target, folder)
    except BaseException:
        target.close()
        raise
    return target


def _copy(path: Path, head: bytes, target: IO[bytes], folder: Path) -> None:
    limit = COMPRESSION_RATIO * path.stat().st_size + _RATIO_FREE_BYTES
    (opener,) = (opener for magic, opener in _OPENERS.items() if head.startswith(magic))
    with opener(path) as stream:
        while chunk := _next_chunk(path, stream):
            with disk_errors(folder, target.tell() + len(chunk)):
                target.write(chunk)
            if target.tell() > limit:
                raise DataError(
                    f"{path} is suspiciously compressed: stopped after {limit / 1e9:.1f} GB. "
                    "If you trust it, unpack it and give the folder instead."
                )
    with disk_errors(folder, target.tell()):
        target.flush()


def _next_chunk(path: Path, stream: BufferedIOBase) -> bytes:
    try:
        return stream.read(_CHUNK_BYTES)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged or cut short: {error}. Download it again.") from error
