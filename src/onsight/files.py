"""Safe writing of files: none that is read is replaced, and each has its name once it is whole.

Until then it has a private name in the same folder, which no file of the user's has. It is synced,
renamed, and the folder synced.
"""

import errno
import json
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from onsight.errors import DiskError, OutputError
from onsight.words import data_size

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_PRIVATE = re.compile(r"\.onsight-[0-9a-f]{16}\.tmp")

Inputs = str | Path | Iterable[str | Path] | None


def user_path(text: str | Path) -> Path:
    """A path with ~ replaced by the home folder. Raises OutputError if there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise OutputError(f"{text}: {error}; name the folder without ~") from error


def check_output(flag: str, path: Path, **inputs: Inputs) -> None:
    """Fail now, rather than after long work, if a file cannot be written or must not be.

    flag: of the command, that names the file; inputs: as for refuse_replacing. Raises OutputError
    if the path is a folder or would replace an input, DiskError if it cannot be written to.
    """
    _refuse_folder(path)
    refuse_replacing(flag, path, **inputs)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def refuse_replacing(flag: str, path: Path, **inputs: Inputs) -> None:
    """Raise OutputError if writing a file would replace one that is read.

    inputs: the paths that are read, by what they are called; those that do not exist do not count.
    Whatever lies in a folder that is read is taken to be read.
    """
    facts = _stat(path)
    if facts is None:  # there is nothing to replace
        return
    for noun, given in inputs.items():
        for name in [given] if isinstance(given, str | Path) else given or ():
            found = _stat(os.path.expanduser(name))
            what = f"the {noun.replace('_', ' ')} {name}"
            if found and stat.S_ISDIR(found.st_mode) and _is_inside(path, name):
                raise OutputError(f"{flag} would replace {path} in {what}; name another file")
            if found and os.path.samestat(found, facts):
                raise OutputError(f"{flag} would replace {what}; name another file")


def refuse_inside_data(path: Path, data: str, example: str, flag: str = "--out") -> None:
    """Raise OutputError for a folder inside the data: its images would become a class."""
    folder = user_path(data)
    if folder.is_dir() and _is_inside(path, folder):
        raise OutputError(
            f"{path} would be inside the data; choose another folder with {flag}, such as "
            f"{flag} {example}"
        )


def _is_inside(path: Path, folder: str | Path) -> bool:
    """Whether a path, which need not exist, or what it links to is a folder or inside it."""
    facts = _stat(os.path.expanduser(folder))
    # Unlike Path.resolve, this gives an answer for a link to itself too.
    place = Path(os.path.realpath(path))
    above = [place, *place.parents]
    if os.path.islink(path):  # it lies somewhere too
        beside = Path(os.path.realpath(path.parent))
        above += [beside, *beside.parents]
    found = map(_stat, above)
    return facts is not None and any(one and os.path.samestat(one, facts) for one in found)


def _stat(path: str | Path) -> os.stat_result | None:
    """The facts about a file or folder, None if there is none."""
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


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


class NewFile:
    """A file under a private name, until it is whole and takes the place of its path."""

    def __init__(self, path: Path) -> None:
        self._has_name = False
        self._path, self._private = path, path.with_name(private_name())
        self.file = open(self._private, "xb")  # noqa: SIM115  # `close` closes it

    def finish(self) -> None:
        """Give the file its name. Raises OSError."""
        put_in_place(self.file, self._private, self._path)
        self._has_name = True

    def close(self) -> None:
        """Close the file, and remove it unless it has its name."""
        with suppress(OSError):  # what could not be written has been told
            self.file.close()
        if not self._has_name:
            self._private.unlink(missing_ok=True)


def private_name() -> str:
    """A name that no file has, for one that is not whole yet."""
    return f".onsight-{secrets.token_hex(8)}.tmp"


def put_in_place(file: IO[bytes], private: Path, path: Path) -> None:
    """Rename an open file that is whole, so that not even a power cut takes it back."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(private, path)
    sync_folder(path.parent)


def write_atomically(path: Path, data: bytes | bytearray) -> None:
    """Replace a file completely or not at all, even in a crash.

    Raises OutputError if the path is a folder, and DiskError, which leaves the former file intact.
    """
    _refuse_folder(path)
    with disk_errors(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(NewFile(path)) as new:
            new.file.write(data)
            new.finish()


def keep_former(path: Path, former: Path) -> None:
    """Give a file a second name in its folder, which it keeps when the first one is replaced."""
    spare = former.with_name(private_name())
    try:
        with suppress(OSError):  # a disk without hard links: only the file itself is kept
            os.link(path, spare)
            os.replace(spare, former)
    finally:
        spare.unlink(missing_ok=True)  # a rename does nothing if both names are one file already


def is_unfinished(name: str) -> bool:
    """Whether a name is that of a file which was still being written."""
    return _PRIVATE.fullmatch(name) is not None


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
    if not path.name or os.path.isdir(path):
        raise OutputError(f"'{path}' is a folder; it must be a file")


def write_json(path: Path, value: Any) -> None:
    """Write a value as readable JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())
