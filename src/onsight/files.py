"""Safe writing of files: written to a temporary file, synced, renamed, and the folder synced."""

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from onsight.errors import DiskError, OutputError
from onsight.words import data_size

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_TEMPORARY = re.compile(r"\..+\.[0-9]+\.tmp")


def user_path(text: str | Path) -> Path:
    """A path with ~ replaced by the home folder. Raises OutputError if there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise OutputError(f"{text}: {error}; name the folder without ~") from error


def refuse_inside_data(path: Path, data: str, example: str) -> None:
    """Raise OutputError for a folder inside the data: its pictures would become a class."""
    folder = user_path(data)
    # Unlike Path.resolve, this gives an answer for a link to itself too.
    place, inside = os.path.realpath(path), os.path.realpath(folder)
    if folder.is_dir() and Path(place).is_relative_to(inside):
        raise OutputError(
            f"{path} would be inside the data; choose another folder with --out, such as "
            f"--out {example}"
        )


@contextmanager
def disk_errors(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError while writing into one clear DiskError."""
    try:
        yield
    except OSError as error:
        need = f" ({data_size(needed_bytes)} needed)" if needed_bytes else ""
        if error.errno in _NO_ROOM:
            raise DiskError(
                f"no space left on the disk while writing {path}{need}. "
                "Free some space or choose another folder; nothing written before was lost."
            ) from error
        raise DiskError(f"cannot write {path}{need}: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: Path) -> None:
    """Fail now, rather than after long work, if a file cannot be written.

    Raises OutputError if the path is a folder, DiskError if it cannot be written to.
    """
    _refuse_folder(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def write_atomically(path: Path, data: bytes | bytearray) -> None:
    """Replace a file completely or not at all, even in a crash.

    Raises OutputError if the path is a folder, and DiskError, which leaves the former file intact.
    """
    _refuse_folder(path)
    temporary = temporary_beside(path)
    with disk_errors(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def temporary_beside(path: Path) -> Path:
    """Where this process writes a file before it is renamed to its path, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def keep_former(path: Path, former: Path) -> None:
    """Give a file a second name in its folder, which it keeps when the first one is replaced."""
    spare = temporary_beside(former)
    try:
        with suppress(OSError):  # a disk without hard links: only the file itself is kept
            spare.unlink(missing_ok=True)
            os.link(path, spare)
            os.replace(spare, former)
    finally:
        spare.unlink(missing_ok=True)  # a rename does nothing if both names are one file already


def is_unfinished(name: str) -> bool:
    """Whether a name is that of a file which was still being written."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder and below, where nobody writes.

    Nothing else is touched, and links are neither followed nor removed.
    """
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if is_unfinished(name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)


def _refuse_folder(path: Path) -> None:
    if not path.name or path.is_dir():
        raise OutputError(f"'{path}' is a folder; it must be a file")


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())
