"""Write files safely: inputs are never replaced, and a file gets its name once it is complete.

Until then it has a private name in the same folder. It is then synced, renamed, and the folder
synced, so that neither a crash nor a power cut leaves half a file under the real name.
"""

import csv
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from onsight.errors import DiskError, OutputError, did_you_mean
from onsight.text import data_size
from onsight.untrusted import open_regular

BLANK_DIGEST = "0" * 64  # stands for the file's SHA-256 while it is computed
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
# Text that a spreadsheet takes for a formula, but no single character and no number; apostrophes
# before it are counted too, so that the one that is added can be told from those that were there.
_FORMULA = re.compile(r"(?!'*[-+]?[\d.,]+(e[-+]?\d+)?\Z)'*[=+\-@\t\r].", re.DOTALL | re.IGNORECASE)
_COMPARED_NAMES = 10_000  # candidates for "did you mean"
_MARK_WITHIN = 8_000  # bytes from the start of a file
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_PRIVATE_NAME = re.compile(r"\.onsight-[0-9a-f]{16}\.tmp")

PNG_METADATA = {"Software": "Onsight"}  # of images that matplotlib saves
PNG_MARK = b"Software\0Onsight"

Inputs = str | Path | Iterable[str | Path] | None


def user_path(text: str | Path) -> Path:
    """Return a path with ~ expanded. Raises OutputError if there is no home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise OutputError(f"{text}: {error}; name the folder without ~") from error


def similar_names(path: str | Path, others: Iterable[str] = ()) -> str:
    """Return " Did you mean a, b?" with names like that of a missing path, or an empty string.

    They are names in its folder, or others.
    """
    try:
        with os.scandir(Path(path).parent) as scan:
            names = [entry.name for entry in islice(scan, _COMPARED_NAMES)]
    except OSError:
        names = []
    return did_you_mean(Path(path).name, sorted([*names, *others]))


# --- Checks before any work ---


def check_output(flag: str, path: Path, **inputs: Inputs) -> None:
    """Fail before the work if its output could not be written, or would replace an input.

    flag names the file on the command line; inputs are as for refuse_replacing. Raises
    OutputError for an input or what is no regular file, DiskError for a place that cannot be
    written to.
    """
    _refuse_folder(path)
    for folder in path.parents:
        if folder.is_file():
            raise OutputError(f"{flag} {path}: {folder} is a file, not a folder; choose another")
    refuse_replacing(flag, path, **inputs)
    refuse_special(flag, path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()


def refuse_replacing(flag: str, path: Path, **inputs: Inputs) -> None:
    """Raise OutputError if writing a file would replace an input.

    inputs are paths by what the message calls them; missing ones are ignored. Everything inside an
    input folder counts as an input.
    """
    output_stat = _stat(path)
    if output_stat is None:  # there is nothing to replace
        return
    for noun, given in inputs.items():
        for name in [given] if isinstance(given, str | Path) else given or ():
            input_stat = _stat(os.path.expanduser(name))
            source = f"the {noun.replace('_', ' ')} {name}"
            if input_stat and stat.S_ISDIR(input_stat.st_mode) and _is_inside(path, name):
                raise OutputError(f"{flag} would replace {path} in {source}; name another file")
            if input_stat and os.path.samestat(input_stat, output_stat):
                raise OutputError(f"{flag} would replace {source}; name another file")


def refuse_special(flag: str, path: Path) -> None:
    """Raise OutputError for a link, device or pipe, which a new file would replace."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OutputError(
            f"{flag} {path} is a link, device or pipe, and would be replaced; name a file"
        )


def refuse_foreign(
    path: Path, mark: bytes | Callable[[Path], bool], kind: str, flag: str = "--out"
) -> None:
    """Raise OutputError if a file exists, with any content, that Onsight did not write.

    Args:
        mark: What a file of this kind has near its start, or what tells whether it is of this kind.
        kind: What to call it, such as "a model card".
        flag: The option that names the file.
    """
    refuse_special(flag, path)
    if not path.exists() or not path.stat().st_size:
        return
    if not (has_mark(path, mark) if isinstance(mark, bytes) else mark(path)):
        raise OutputError(
            f"{flag}: {path} exists and is not {kind} written by Onsight, so it is left as it is; "
            "name another file"
        )


def has_mark(path: Path, mark: bytes) -> bool:
    """Return whether a file has a mark near its start, so that Onsight wrote it."""
    try:
        with open(open_regular(path), "rb") as file:
            return mark in file.read(_MARK_WITHIN)
    except OSError:
        return False


def refuse_inside_data(path: Path, data: str, example: str, flag: str = "--out") -> None:
    """Raise OutputError for a folder inside the data: its images would become a class."""
    folder = user_path(data.removeprefix("file://"))
    if folder.is_dir() and _is_inside(path, folder):
        raise OutputError(
            f"{path} would be inside the data; choose another folder with {flag}, such as "
            f"{flag} {example}"
        )


def refuse_no_folder(path: Path) -> None:
    """Raise OutputError if an output folder's path is taken by something else."""
    if os.path.lexists(path) and not path.is_dir():
        kind = "a file" if path.exists() else "a broken link"
        raise OutputError(f"{path} is {kind}; --out needs a folder")


def refuse_links(run: Path) -> None:
    """Raise OutputError for a link in a run folder, which may be somebody else's."""
    for folder, names, files in os.walk(run):
        for name in (*names, *files):
            link = Path(folder, name)
            if link.is_symlink():
                raise OutputError(
                    f"{link} is a link, and nothing outside a run's own folder is read or written; "
                    "replace the link by what it points to, or use another folder"
                )


# --- Atomic writing ---


def write_atomically(path: Path, data: bytes | bytearray) -> None:
    """Replace a file completely or not at all, even in a crash.

    Raises OutputError if the path is a folder, and DiskError, which leaves the old file intact.
    """
    _refuse_folder(path)
    with disk_errors(path, len(data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(NewFile(path)) as new:
            new.file.write(data)
            new.finish()


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table for people atomically; paths that are not UTF-8 keep their bytes."""
    safe_rows = (
        [
            safe_cell(column, cell) if isinstance(cell, str) else cell
            for column, cell in zip(header, row, strict=True)
        ]
        for row in rows
    )
    text = csv_text(chain([header], safe_rows))
    write_atomically(path, text.encode("utf-8", "surrogateescape"))


def safe_cell(column: str, text: str) -> str:
    """Return text as a cell that no spreadsheet takes for a formula; `read_cell` restores it.

    A path is put after ./, so that it is the same path for every program; other text after an
    apostrophe.
    """
    if column.endswith("path"):
        return f"./{text}" if text.startswith(_FORMULA_STARTS) else text
    return f"'{text}" if _FORMULA.match(text) else text


def read_cell(column: str, cell: str) -> str:
    """Return the text that `safe_cell` wrote."""
    if column.endswith("path"):
        return cell[2:] if cell.startswith("./") and cell[2:].startswith(_FORMULA_STARTS) else cell
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV that every program parses alike, one line per row."""
    text = io.StringIO()
    plain = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # Before Python 3.13, a lone carriage return is not quoted, and splits the row.
        has_return = any("\r" in cell for cell in row if isinstance(cell, str))
        (quoted if has_return else plain).writerow(row)
    return text.getvalue()


class NewFile:
    """A file being written under a private name, until `finish` renames it."""

    def __init__(self, path: Path) -> None:
        self._is_finished = False
        self._path, self._private_path = path, path.with_name(private_name())
        self.file = open(self._private_path, "xb")  # noqa: SIM115  # `close` closes it

    def finish(self) -> None:
        """Give the file its name. Raises OSError."""
        move_into_place(self.file, self._private_path, self._path)
        self._is_finished = True

    def close(self) -> None:
        """Close the file, and remove it unless it is finished."""
        with suppress(OSError):  # a failed write has already raised
            self.file.close()
        if not self._is_finished:
            self._private_path.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder under a private name; it gets its own name at the end. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    private_path = path.with_name(private_name())
    private_path.mkdir()
    try:
        yield private_path
        private_path.rename(path)
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(private_path, ignore_errors=True)
        raise


def private_name() -> str:
    """Return a new name for a file that is not complete yet."""
    return f".onsight-{secrets.token_hex(8)}.tmp"


def move_into_place(file: IO[bytes], private_path: Path, path: Path) -> None:
    """Rename a complete, open file durably: not even a power cut undoes it."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(private_path, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_previous(path: Path, previous: Path) -> None:
    """Give a file a second name in its folder, which survives when the first is replaced."""
    spare = previous.with_name(private_name())
    try:
        with suppress(OSError):  # a disk without hard links: only the file itself remains
            os.link(path, spare)
            os.replace(spare, previous)
    finally:
        spare.unlink(missing_ok=True)  # a rename does nothing if both names are one file already


def is_unfinished(name: str) -> bool:
    """Return whether a name is the private name of a file still being written."""
    return _PRIVATE_NAME.fullmatch(name) is not None


def remove_unfinished(folder: Path) -> None:
    """Remove the half-written files of killed processes, below a folder where nobody writes now.

    Nothing else is touched, and links are neither followed nor removed.
    """
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if is_unfinished(name) and path.is_file() and not path.is_symlink():
                path.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError while writing into one clear DiskError."""
    try:
        yield
    except OSError as error:
        need = f" ({data_size(needed_bytes)} needed)" if needed_bytes else ""
        if error.errno in _NO_SPACE:
            raise DiskError(
                f"no space left on the disk while writing {path}{need}. "
                "Free some space or choose another folder; nothing written before was lost."
            ) from error
        raise DiskError(f"cannot write {path}{need}: {error.strerror or error}") from error


# --- Checksums ---


def digest_around(data: bytes | bytearray | memoryview, position: int) -> str:
    """Return the SHA-256 of a file that contains its own SHA-256 at a position, zeroed there."""
    view = memoryview(data)
    digest = hashlib.sha256(view[:position])
    digest.update(BLANK_DIGEST.encode())
    digest.update(view[position + len(BLANK_DIGEST) :])
    return digest.hexdigest()


def _refuse_folder(path: Path) -> None:
    if not path.name or os.path.isdir(path):
        raise OutputError(f"'{path}' is a folder; it must be a file")


def _is_inside(path: Path, folder: str | Path) -> bool:
    """Return whether a path, which need not exist, or its link target is a folder or inside it."""
    folder_stat = _stat(os.path.expanduser(folder))
    # Unlike Path.resolve, realpath also answers for a link to itself.
    target = Path(os.path.realpath(path))
    places = [target, *target.parents]
    if os.path.islink(path):  # the link itself lies somewhere too
        parent = Path(os.path.realpath(path.parent))
        places += [parent, *parent.parents]
    stats = map(_stat, places)
    return folder_stat is not None and any(
        place_stat and os.path.samestat(place_stat, folder_stat) for place_stat in stats
    )


def _stat(path: str | Path) -> os.stat_result | None:
    """Return the stat of a file or folder, or None if there is none."""
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None
