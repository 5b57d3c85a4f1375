"""Zip and tar archives of class folders, read in place.

Nothing is unpacked; a compressed tar is decompressed once, into an unnamed temporary file.
"""

import bz2
import gzip
import lzma
import os
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import BufferedIOBase
from pathlib import Path
from typing import IO

from onsight.data.cache import file_state
from onsight.data.index import Index
from onsight.data.sources.archive_members import BrokenTar, Members, open_tar, open_zip
from onsight.data.sources.folder import arrange
from onsight.data.sources.source import Source, compute_fingerprint, describe, note_hidden
from onsight.errors import DataError
from onsight.files import disk_errors
from onsight.limits import COMPRESSION_RATIO
from onsight.text import plural

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_ZIP_ENDINGS = (".zip",)
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_BATCH_FILES = {"data_batch_1", "data_batch_1.bin", "train.bin"}
_MAX_BATCH_FILES = 200  # archives with more members than this hold images, not batches

_COPY_CHUNK_BYTES = 2**20
_RATIO_FREE_BYTES = 10**8  # decompressed size up to which any ratio is allowed
_Opener = Callable[[Path], BufferedIOBase]
_DECOMPRESSORS: dict[bytes, _Opener] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}

Reader = Callable[[int], bytes]


def detect_archive(path: Path) -> str:
    """Return `zip`, `tar` or an empty string, from the content if possible, else from the name."""
    with open(path, "rb") as file:
        head = file.read(512)
    if head.startswith(_ZIP_MAGIC):
        return "zip"
    if head[257:262] == b"ustar" or head.startswith(tuple(_DECOMPRESSORS)):
        return "tar"
    name = path.name.lower()
    if name.endswith(_ZIP_ENDINGS):
        return "zip"
    return "tar" if name.endswith(_TAR_ENDINGS) else ""


def read_archive(path: Path, cache_folder: Path | None = None) -> Source:
    """Return the images in the class folders of a zip or a tar.

    cache_folder: where the unlinked file of a decompressed tar goes. Raises DataError for a broken
    archive or one without class folders; DiskError.
    """
    path = Path(os.path.realpath(path))
    members, read_member = open_archive(path, cache_folder)
    _refuse_batches(path, members.paths)
    rows, positions, unclassified = arrange(members.paths, str(path), strip_top=True)
    index = Index.of(rows)
    problems = members.problems + unclassified
    size = plural(len(rows) + len(problems), "file")
    what = f"{detect_archive(path)} archive of class folders"
    return Source(
        kind="archive",
        root=path,
        index=index,
        read=lambda row: read_member(positions[row]),
        fingerprint=compute_fingerprint(["archive", *file_state(path)]),
        description=describe(what, index, size, note_hidden(members.hidden)),
        problems=problems,
    )


def open_archive(path: Path, cache_folder: Path | None = None) -> tuple[Members, Reader]:
    """Return the members of a zip or tar, and a function that reads usable member i.

    The file is closed with the function. cache_folder: where the unlinked file of a decompressed
    tar goes. Raises DataError, DiskError.
    """
    kind = detect_archive(path)
    if not kind:
        raise DataError(f"{path} is neither a zip nor a tar, judging by its content and name")
    with ExitStack() as cleanup:
        file = cleanup.enter_context(_open_seekable(path, cache_folder))
        try:
            members, read_member = (open_zip if kind == "zip" else open_tar)(file)
        except (zipfile.BadZipFile, BrokenTar, ValueError, NotImplementedError, OSError) as error:
            raise DataError(
                f"{path} is a broken {kind}: {error}. Download or create it again."
            ) from error
        weakref.finalize(read_member, cleanup.pop_all().close)
    return members, read_member


def _refuse_batches(path: Path, names: Sequence[str]) -> None:
    """Raise DataError for an archive of CIFAR batches or IDX files instead of images."""
    if len(names) > _MAX_BATCH_FILES:
        return
    bases = {name.rpartition("/")[2] for name in names}
    batches = bases & _BATCH_FILES or {base for base in bases if "idx3-ubyte" in base}
    if batches or {"train", "test", "meta"} <= bases:
        raise DataError(
            f"{path} holds CIFAR batches or IDX files instead of images; "
            "unpack it and give the folder instead"
        )


def _open_seekable(path: Path, cache_folder: Path | None) -> IO[bytes]:
    """Open an archive, decompressed if it is a compressed tar."""
    with open(path, "rb") as file:
        head = file.read(8)
    for magic, opener in _DECOMPRESSORS.items():
        if head.startswith(magic):
            return _decompress(path, opener, cache_folder)
    return open(path, "rb")


def _decompress(path: Path, opener: _Opener, folder: Path | None) -> IO[bytes]:
    """Decompress a file into an unlinked file, which disappears with the process.

    folder: for the temporary file; None for the system's. Raises DiskError; DataError for a
    damaged file or one that grows suspiciously large.
    """
    folder = folder or Path(tempfile.gettempdir())
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        target = tempfile.TemporaryFile(prefix="onsight-", dir=folder)  # noqa: SIM115  # returned
    try:
        _copy_decompressed(path, opener, target, folder)
    except BaseException:
        target.close()
        raise
    return target


def _copy_decompressed(path: Path, opener: _Opener, target: IO[bytes], folder: Path) -> None:
    limit = COMPRESSION_RATIO * path.stat().st_size + _RATIO_FREE_BYTES
    try:
        with opener(path) as stream:
            while chunk := stream.read(_COPY_CHUNK_BYTES):
                with disk_errors(folder, target.tell() + len(chunk)):
                    target.write(chunk)
                if target.tell() > limit:
                    raise DataError(
                        f"{path} is suspiciously compressed: stopped after {limit / 1e9:.1f} GB. "
                        "If you trust it, unpack it and give the folder instead."
                    )
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} is damaged or truncated: {error}. Download it again.") from error
    with disk_errors(folder, target.tell()):
        target.flush()
