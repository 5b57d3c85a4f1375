"""The lines of a manifest as entries of path, label and split."""

import codecs
import datetime
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from onsight.data.index import SPLIT_WORDS, UNSPLIT
from onsight.data.sources.manifest_tables import (
    GROUP_COLUMN,
    KNOWN_COLUMNS,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    SPLIT_COLUMNS,
    TIME_COLUMN,
    plain_name,
    read_table,
)
from onsight.errors import DataError
from onsight.words import listed


class Entry(NamedTuple):
    """One line of a manifest; the caller handles an empty label.

    group: empty for none; time: seconds since 1970 or the number given, None where it has none.
    """

    line: int
    path: str
    label: str
    split: int
    group: str = ""
    time: float | None = None


class Columns(NamedTuple):
    """The positions of the columns in the header."""

    path: int
    label: int
    split: int | None
    group: int | None
    time: int | None

    def named(self, header: Sequence[str]) -> str:
        """Which columns are read, by their names."""
        return listed([header[place] for place in self if place is not None])


def read_entries(manifest: Path, label: str = "") -> tuple[str, Iterator[Entry]]:
    """The columns that are read, and the lines; the format follows from the ending of the name.

    label: the column of labels, if its name does not tell. Raises DataError for missing columns
    and, while the lines are read, for a malformed one, an unknown split or time.
    """
    with naming_faults(manifest):
        header, rows = read_table(manifest, label)
        columns = _find_columns(header, manifest, label)
        return columns.named(header), _entries(manifest, rows, columns, len(header))


def read_paths(manifest: Path) -> Iterator[str]:
    """The path in every line, whatever else it has. Raises DataError, as the lines are read."""
    with naming_faults(manifest):
        header, rows = read_table(manifest)
        columns = [plain_name(name) for name in header]
        place = next((columns.index(name) for name in PATH_COLUMNS if name in columns), None)
        if place is None:
            raise DataError(
                f"{manifest} has no column of paths; it has: {', '.join(header) or 'none'}. "
                "Name the column path"
            )
        for line, cells in rows:
            try:
                yield _path(_whole(cells, len(header))[place])
            except ValueError as error:
                raise DataError(f"{manifest}, line {line}: {error}") from error


def _entries(
    manifest: Path, rows: Iterable[tuple[int, Sequence[object]]], columns: Columns, width: int
) -> Iterator[Entry]:
    with naming_faults(manifest):
        for line, cells in rows:
            yield _entry(manifest, line, cells, columns, width)


@contextmanager
def naming_faults(manifest: Path) -> Iterator[None]:
    """DataErrors that name the table in which text or a disk fails."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{manifest}{_foreign_text(manifest)}; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{manifest} cannot be read: {error.strerror or error}") from error


def _foreign_text(manifest: Path) -> str:
    """Where a file stops being UTF-8: its first line that is not, and the byte there."""
    with open(manifest, "rb") as file:
        for line, content in enumerate(file, 1):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    return " is UTF-16 text"
                byte, place = content[error.start], error.start + 1
                return f", line {line}: byte 0x{byte:02x} in place {place} is not UTF-8 text"
    return " is not UTF-8 text"


def _find_columns(header: Sequence[str], manifest: Path, label: str) -> Columns:
    names = [plain_name(name) for name in header]

    def place(options: Sequence[str]) -> int | None:
        return next((names.index(name) for name in options if name in names), None)

    twice = next((name for name in names if name in KNOWN_COLUMNS and names.count(name) > 1), None)
    if twice:
        raise DataError(f"{manifest} has two columns named {twice}; rename one of them")
    path, labels = place(PATH_COLUMNS), place(_label_names(names, manifest, label))
    if path is None or labels is None:
        wanted = {"path": path, plain_name(label) or "label": labels}
        missing = [name for name, at in wanted.items() if at is None]
        raise DataError(
            f"{manifest} has no column named {' nor one named '.join(missing)}; it has: "
            f"{', '.join(header) or 'none'}. Name the columns path, label and, optionally, split, "
            "or name the one of the labels with --label"
        )
    return Columns(path, labels, place(SPLIT_COLUMNS), place([GROUP_COLUMN]), place([TIME_COLUMN]))


def _label_names(names: Sequence[str], manifest: Path, label: str) -> Sequence[str]:
    """The names that a column of labels may have. Raises DataError if several are there."""
    if label:
        return [plain_name(label)]
    present = [name for name in LABEL_COLUMNS if name in names]
    if len(present) > 1:
        raise DataError(
            f"{manifest} has the columns {listed(present)}; name the one of the labels with --label"
        )
    return present


def _entry(
    manifest: Path, line: int, cells: Sequence[object], columns: Columns, width: int
) -> Entry:
    """One line's entry. Raises DataError with the line's number."""
    try:
        cells = _whole(cells, width)
        split, group, time = (
            None if place is None else cells[place]
            for place in (columns.split, columns.group, columns.time)
        )
        path, label = _path(cells[columns.path]), _label(cells[columns.label])
        return Entry(line, path, label, _split(split), _group(group), _time(time))
    except ValueError as error:
        raise DataError(f"{manifest}, line {line}: {error}") from error


def _whole(cells: Sequence[object], width: int) -> Sequence[object]:
    if len(cells) != width:
        raise ValueError(f"{len(cells)} cells, but the header names {width} columns")
    return cells


def _path(cell: object) -> str:
    if not isinstance(cell, str) or not cell or "\0" in cell:
        raise ValueError(f"the path is {cell!r}")
    return _valid_unicode(cell)


def _label(cell: object) -> str:
    """A label as text; empty if it is missing, in pandas' sense too."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas turns whole numbers beside missing ones into floats
    if not isinstance(cell, str | int | float):
        raise ValueError(f"the label is neither text nor a number, but {type(cell).__name__}")
    return unicodedata.normalize("NFC", _valid_unicode(str(cell).strip()))


def _split(cell: object) -> int:
    word = "" if cell is None else str(cell).strip()
    if not word:
        return UNSPLIT
    if word.lower() not in SPLIT_WORDS:
        raise ValueError(f"unknown split '{word}'; known splits are {', '.join(SPLIT_WORDS)}")
    return SPLIT_WORDS[word.lower()]


def _group(cell: object) -> str:
    return "" if cell is None else str(cell).strip()


def _time(cell: object) -> float | None:
    """A date or time of ISO 8601, or any number, as a number."""
    if isinstance(cell, datetime.date) and not isinstance(cell, datetime.datetime):
        cell = str(cell)
    if isinstance(cell, str):
        text = cell.strip()
        if not text:
            return None
        try:
            cell = float(text)
        except ValueError:
            cell = _moment(text)
    if isinstance(cell, datetime.datetime):
        has_zone = cell.tzinfo is not None
        return (cell if has_zone else cell.replace(tzinfo=datetime.UTC)).timestamp()
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return None
    if not isinstance(cell, int | float) or not math.isfinite(cell):
        raise ValueError(f"the time is {cell!r}; give a date such as 2026-05-31, or a number")
    return float(cell)


def _moment(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"the time is '{text}'; give a date such as 2026-05-31 or 2026-05-31T14:30, or a number"
        ) from error


def _valid_unicode(text: str) -> str:
    """The text, if it is valid Unicode: JSON can contain lone surrogates."""
    text.encode()
    return text
