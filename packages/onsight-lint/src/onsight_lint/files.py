"""Find, read, decode and rewrite Python files."""

import io
import os
import re
import tempfile
import tokenize
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from onsight_lint.errors import ReadError, WriteError

_MAX_BYTES = 4 * 2**20  # larger files are generated tables, whose trees take gigabytes
# Text that is the same in all encodings in which single lines can be changed.
_PLAIN = bytes(range(32, 127)).replace(b"\\", b"\\n\\u0041\n")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SKIPPED_FOLDERS = ("build", "dist", "node_modules", "site-packages", "venv", "__pycache__")


def python_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files among the paths and every .py file in the folders, as absolute paths.

    Links, hidden folders, environments and build or installation folders are skipped unless they
    are named. Raises ReadError for a path that does not exist or a folder without Python files.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ReadError(f"{path} does not exist.")
        if not path.is_dir() and not path.is_file():
            raise ReadError(f"{path} is not a file.")
        inside = list(_files_inside(path)) if path.is_dir() else [path]
        if not inside:
            raise ReadError(f"{path} has no Python files.")
        files += [Path(os.path.abspath(file)) for file in inside]
    return list(dict.fromkeys(files))


def printable(text: str) -> str:
    """Escape control characters, so that names and lines of files cannot steer a terminal."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def display_path(path: Path) -> str:
    """Return a path as messages show it: relative to the working folder, if it lies inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def read_content(path: Path) -> bytes:
    """Read a file. Raises ReadError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            return read_bounded(path, file)
    except OSError as error:
        raise ReadError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_bounded(path: Path, file: BinaryIO) -> bytes:
    """Read an open file to its end. Raises ReadError if it is too large."""
    content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ReadError(f"{path} is not read: it is larger than {_MAX_BYTES // 2**20} MB.")
    return content


def decode(path: Path, content: bytes) -> str:
    r"""Decode a file as its byte order mark or coding line says, with \n as the line ending.

    Raises ReadError if the content is not in that encoding.
    """
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
    except SyntaxError as error:
        raise ReadError(f"{path} is not a Python script: {error.msg}.") from error
    try:
        if _PLAIN.decode(encoding) != _PLAIN.decode():
            raise ReadError(f"{path} is not read: its coding is {encoding}; save it as UTF-8.")
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except (LookupError, UnicodeError) as error:
        raise ReadError(f"{path} is not {encoding.upper()} text; save it as UTF-8.") from error


def encode(path: Path, text: str, before: bytes) -> bytes:
    r"""Encode a text whose lines end in \n, with the encoding and the line ending of before.

    Raises ReadError if the encoding lacks a character, or if before mixes line endings.
    """
    encoding = tokenize.detect_encoding(io.BytesIO(before).readline)[0]
    try:
        return text.replace("\n", _line_end(path, before)).encode(encoding)
    except UnicodeError as error:
        raise _unchanged(path, "its encoding lacks a character of the new text") from error


def rewrite(path: Path, text: str, before: bytes) -> None:
    """Replace the text of a file atomically, keeping its encoding, line ending and mode.

    before is the content that the text was made from. Raises ReadError, and leaves the file
    unchanged, if it has changed since or the text cannot be encoded; WriteError if the file cannot
    be written.
    """
    content = encode(path, text, before)
    try:
        _replace(path.resolve(), content, before)  # a link stays a link
    except (_FileChangedError, FileNotFoundError) as error:
        raise _unchanged(path, "it changed while the linter ran; run again") from error
    except OSError as error:
        problem = f"cannot write {display_path(path)}: {error.strerror or error}."
        raise WriteError(problem) from error


class _FileChangedError(Exception):
    """A file no longer holds what was read."""


def _files_inside(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not _is_skipped(here / name))
        python = (here / name for name in sorted(names) if name.endswith(".py"))
        # A link's target is found by itself, or lies outside the folder that was named.
        yield from (path for path in python if path.is_file() and not path.is_symlink())


def _is_skipped(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".")
    return is_hidden or folder.name in _SKIPPED_FOLDERS or (folder / "pyvenv.cfg").exists()


def _replace(path: Path, content: bytes, before: bytes) -> None:
    """Write a new file and rename it over the old one, unless that has changed since it was read.

    If the process is killed, a hidden file `.onsight-lint-*.tmp` may be left beside it.
    """
    descriptor, name = tempfile.mkstemp(".tmp", ".onsight-lint-", path.parent)
    new = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _copy_attributes(path, new)
        if path.read_bytes() != before:
            raise _FileChangedError
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _copy_attributes(old: Path, new: Path) -> None:
    """Give a new file the owner, mode and extended attributes of the file that it replaces."""
    status, created = old.stat(), new.stat()
    if status.st_nlink > 1:
        raise _unchanged(old, "it has other hard links, which would keep the old text")
    if (status.st_uid, status.st_gid) != (created.st_uid, created.st_gid):
        os.chown(new, status.st_uid, status.st_gid)
    for name in os.listxattr(old) if hasattr(os, "listxattr") else ():
        with suppress(OSError):  # only some users may set those of the system
            os.setxattr(new, name, os.getxattr(old, name))
    new.chmod(status.st_mode & 0o7777)


def _line_end(path: Path, content: bytes) -> str:
    pairs, returns, feeds = content.count(b"\r\n"), content.count(b"\r"), content.count(b"\n")
    if pairs and pairs == returns == feeds:
        return "\r\n"
    if returns and not feeds:
        return "\r"
    if returns:
        raise _unchanged(path, "it mixes line endings (LF and CRLF or CR)")
    return "\n"


def _unchanged(path: Path, why: str) -> ReadError:
    return ReadError(f"{display_path(path)} is left unchanged: {why}.")
