"""Check the path of an output file, and write it completely or not at all."""

import os
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from onsight_explain.errors import DiskError, ExplainError

_MARK_WITHIN = 1_000  # bytes from the start of a file


def check_output(path: Path, option: str, inputs: Iterable[str | Path]) -> Path:
    """Return the path with ~ expanded. Call it before the work whose result is written there.

    Creates missing folders. Raises ExplainError if the file would replace an input or is no regular
    file, DiskError if it cannot be written.
    """
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise ExplainError(f"{option} {path}: {error}; name the folder without ~") from error
    if not path.name or path.is_dir():
        raise ExplainError(f"{option} {path} is a folder; it must be a file")
    for source in inputs:
        if path.exists() and os.path.isfile(source) and path.samefile(source):
            raise ExplainError(f"{option} would replace {source}; name another file")
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        raise ExplainError(
            f"{option} {path} is a link, device or pipe, and would be replaced; name a file"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def refuse_foreign(file: Path, mark: bytes, kind: str, option: str) -> None:
    """Raise ExplainError if a file exists, with any content, without the mark of its kind."""
    if not file.is_file():  # a pipe would never end
        return
    try:
        with open(file, "rb") as existing:
            head = existing.read(_MARK_WITHIN)
    except OSError as error:
        raise ExplainError(f"{option}: cannot read {file}: {error.strerror}") from error
    if head and mark not in head:
        raise ExplainError(f"{option}: {file} is not {kind} of onsight explain; name another file")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file completely or not at all, even in a crash. Raises DiskError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DiskError(f"cannot write {path}: {error.strerror or error}") from error
        raise
