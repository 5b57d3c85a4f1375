"""A zip or tar of class folders, read in place: nothing is ever unpacked to disk."""

import os
import weakref
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from onsight.data.file_state import stat_facts
from onsight.data.index import Index
from onsight.data.sources.archive_members import Members
from onsight.data.sources.archive_tar import BrokenTar, open_tar
from onsight.data.sources.archive_zip import open_zip
from onsight.data.sources.class_folders import arrange
from onsight.data.sources.decompress import decompress, is_compressed
from onsight.data.sources.source import (
    Source,
    fingerprint,
    found_line,
    hidden_note,
)
from onsight.errors import DataError
from onsight.words import plural

_ZIP_HEADS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_ZIP_ENDINGS = (".zip",)
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_BATCH_FILES = {"data_batch_1", "data_batch_1.bin", "train.bin"}
_FEW = 200  # archives with more members than this hold images, not batches

Reader = Callable[[int], bytes]


def archive_kind(path: Path) -> str:
    """`zip`, `tar` or nothing, judged by content, then by name."""
    with open(path, "rb") as file:
        head = file.read(512)
    if head.startswith(_ZIP_HEADS):
        return "zip"
    if head[257:262] == b"ustar" or is_compressed(head):
        return "tar"
    name = path.name.lower()
    if name.endswith(_ZIP_ENDINGS):
        return "zip"
    return "tar" if name.endswith(_TAR_ENDINGS) else ""


def read_archive(path: Path, cache_folder: Path | None = None) -> Source:
    """The class folders in a zip or a tar.

    cache_folder: where a compressed tar is decompressed to, in an unlinked file. Raises
    DataError for a broken archive or one without class folders; DiskError.
    """
    path = Path(os.path.realpath(path))
    with ExitStack() as cleanup:
        kind, file, members, read_member = _open(path, cache_folder, cleanup)
        _refuse_batches(path, members.paths)
        rows, places, unclassified = arrange(members.paths, str(path), strip_top=True)
        reader = _RowReader(file, read_member, places)
        cleanup.pop_all()
    index = Index.of(rows)
    problems = members.problems + unclassified
    size = plural(len(rows) + len(problems), "file")
    what = f"{kind} archive of class folders"
    return Source(
        kind="archive",
        root=path,
        index=index,
        read=reader,
        fingerprint=fingerprint(["archive", *stat_facts(path)]),
        found=found_line(what, index, size, hidden_note(members.hidden)),
        problems=problems,
    )


def open_archive(path: Path, cache_folder: Path | None = None) -> tuple[Members, Reader]:
    """The members of a zip or a tar, and what reads one by its number among the usable ones.

    cache_folder: as for `read_archive`. Raises DataError, DiskError.
    """
    with ExitStack() as cleanup:
        _, file, members, read_member = _open(path, cache_folder, cleanup)
        cleanup.pop_all()
    return members, _RowReader(file, read_member, range(len(members.paths)))


class _RowReader:
    """Reads row i; the archive's file is closed once the reader is garbage."""

    def __init__(self, file: IO[bytes], read_member: Reader, places: Sequence[int]) -> None:
        self._read_member = read_member
        self._places = places
        weakref.finalize(self, file.close)

    def __call__(self, row: int) -> bytes:
        return self._read_member(self._places[row])


def _open(
    path: Path, cache_folder: Path | None, cleanup: ExitStack
) -> tuple[str, IO[bytes], Members, Reader]:
    """The archive's kind, its open file, its members and their reader."""
    kind = archive_kind(path)
    if not kind:
        raise DataError(f"{path} is neither a zip nor a tar, judging by its content and name")
    file = cleanup.enter_context(_content(path, cache_folder))
    try:
        return kind, file, *(open_zip if kind == "zip" else open_tar)(file)
    except (zipfile.BadZipFile, BrokenTar, ValueError, NotImplementedError, OSError) as error:
        raise DataError(
            f"{path} is a broken {kind}: {error}. Download or create it again."
        ) from error


def _content(path: Path, cache_folder: Path | None) -> IO[bytes]:
    """The archive as a file that supports seeking."""
    with open(path, "rb") as file:
        head = file.read(8)
    return decompress(path, head, cache_folder) if is_compressed(head) else open(path, "rb")


def _refuse_batches(path: Path, names: Sequence[str]) -> None:
    """Raise DataError for an archive of CIFAR batches or IDX files instead of images."""
    if len(names) > _FEW:
        return
    bases = {name.rpartition("/")[2] for name in names}
    batches = bases & _BATCH_FILES or {base for base in bases if "idx3-ubyte" in base}
    if batches or {"train", "test", "meta"} <= bases:
        raise DataError(
            f"{path} holds CIFAR batches or IDX files instead of images; "
            "unpack it and give the folder instead"
        )
