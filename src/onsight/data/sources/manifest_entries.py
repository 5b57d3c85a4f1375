"""The lines of a manifest as entries of path, label and split."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from onsight.data.index import SPLIT_WORDS, UNSPLIT
from onsight.data.sources.manifest_tables import (
    LABEL_COLUMNS,
    PATH_COLUMNS,
    SPLIT_COLUMNS,
    plain_name,
    read_table,
)
from onsight.errors import DataError


class Entry(NamedTuple):
    """One line of a manifest; the caller handles an empty label."""

    line: int
    path: str
    label: str
    split: int


class _Columns(NamedTuple):
    """The positions of the columns in the header."""

    path: int
    label: int
    split: int | None


def read_entries(manifest: Path) -> Iterator[Entry]:
    """The lines of a manifest, whose format follows from the ending of its name.

    Raises DataError for missing columns, a malformed line or an unknown split.
    """
    try:
        header, rows = read_table(manifest)
        columns = _find_columns(header, manifest)
        for line, cells in rows:
            yield _entry(manifest, line, cells, columns, len(header))
    except UnicodeDecodeError as error:
        raise DataError(f"{manifest} is not UTF-8 text ({error}); save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{manifest} cannot be read: {error.strerror or error}") from error


def _find_columns(header: Sequence[str], manifest: Path) -> _Columns:
    names = [plain_name(name) for name in header]

    def place(options: Sequence[str]) -> int | None:
        return next((names.index(name) for name in options if name in names), None)

    path, label = place(PATH_COLUMNS), place(LABEL_COLUMNS)
    if path is None or label is None:
        missing = [name for name, at in (("path", path), ("label", label)) if at is None]
        raise DataError(
            f"{manifest} has no column named {' nor one named '.join(missing)}; it has: "
            f"{', '.join(header) or 'none'}. Name the columns path, label and, optionally, split."
        )
    return _Columns(path, label, place(SPLIT_COLUMNS))


def _entry(
    manifest: Path, line: int, cells: Sequence[object], columns: _Columns, width: int
) -> Entry:
    """One line's entry. Raises DataError with the line's number."""
    try:
        if len(cells) != width:
            raise ValueError(f"{len(cells)} cells, but the header names {width} columns")
        split = None if columns.split is None else cells[columns.split]
        return Entry(line, _path(cells[columns.path]), _label(cells[columns.label]), _split(split))
    except ValueError as error:
        raise DataError(f"{manifest}, line {line}: {error}") from error


def _path(cell: object) -> str:
    if not isinstance(cell, str) or not cell or "\0" in cell:
        raise ValueError(f"the path is {cell!r}")
    return _writable(cell)


def _label(cell: object) -> str:
    """A label as text; empty if it is missing, in pandas' sense too."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas turns whole numbers beside missing ones into floats
    if not isinstance(cell, str | int | float):
        raise ValueError(f"the label is neither text nor a number, but {type(cell).__name__}")
    return unicodedata.normalize("NFC", _writable(str(cell).strip()))


def _split(cell: object) -> int:
    word = "" if cell is None else str(cell).strip()
    if not word:
        return UNSPLIT
    if word.lower() not in SPLIT_WORDS:
        raise ValueError(f"unknown split '{word}'; known splits are {', '.join(SPLIT_WORDS)}")
    return SPLIT_WORDS[word.lower()]


def _writable(text: str) -> str:
    """The text, if it is valid Unicode: JSON can contain lone surrogates."""
    text.encode()
    return text
