"""Manifests: tables that list images with their labels and, optionally, splits, groups and times.

`list_entries` turns the entries of any such list into a source; exports of annotation tools use it
too.
"""

import datetime
import hashlib
import math
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.cache import file_state_bytes
from onsight.data.index import SPLIT_NAMES, SPLIT_WORDS, UNSPLIT, Index, Problem, Row
from onsight.data.sources.folder import FileReader
from onsight.data.sources.source import Source, describe
from onsight.data.sources.tables import (
    GROUP_COLUMN,
    KNOWN_COLUMNS,
    LABEL_COLUMNS,
    PATH_COLUMNS,
    READERS,
    SPLIT_COLUMNS,
    TIME_COLUMN,
    normalize_column,
    parse_cell,
    parse_label,
    read_table,
)
from onsight.errors import DataError
from onsight.text import joined, plural


class Entry(NamedTuple):
    """One image with one label, as a line of a manifest or an annotation lists it."""

    line: int
    path: str
    label: str  # label, empty if the line has none
    split: int
    group: str = ""
    time: float | None = None  # seconds since 1970, or the given number
    fault: str = ""  # why its image cannot be found


def is_manifest(path: Path) -> bool:
    """Return whether a file's name has the ending of a manifest."""
    return path.suffix.lower() in READERS


def read_manifest(manifest: Path, label: str = "") -> Source:
    """Return the images that a CSV, TSV, JSON lines or Parquet file lists.

    Paths are relative to the manifest's folder. label: the column of labels, if it has an unusual
    name. Raises DataError for a manifest that cannot be parsed or has no usable image.
    """
    manifest = manifest.absolute()
    header, rows = read_table(manifest, label)
    columns = _find_columns(header, manifest, label)
    entries = _parse_rows(manifest, rows, columns, len(header))
    what = f"{manifest.suffix[1:].upper()} manifest"
    read = joined([header[position] for position in columns if position is not None])
    return list_entries(manifest, entries, "manifest", what, [f"columns {read}"])


def list_entries(
    file: Path,
    entries: Iterable[Entry],
    kind: str,
    what: str,
    notes: Sequence[str] = (),
    unit: str = "line",
    root: Path | None = None,
) -> Source:
    """Return the source of the images that a file lists; unusable entries become problems.

    what: the file's format as the user reads it; unit: the format's word for an entry;
    root: the base of relative paths, by default the file's folder. Raises DataError if no entry
    is usable.
    """
    root = root or file.parent
    listing = _Listing(file, str(root), (kind, *notes))
    for same_file in _group_by_file(entries, str(root)):
        listing.add(same_file)
    if not listing.rows:
        raise DataError(f"{file} lists no usable image{listing.first_reason(unit)}")
    index = Index.of(listing.rows)
    size = plural(len(listing.rows) + len(listing.problems), unit)
    return Source(
        kind=kind,
        root=file,
        index=index,
        read=FileReader(str(root), index.locators),
        fingerprint=listing.digest.hexdigest(),
        description=describe(what, index, size, notes),
        problems=[problem for _, problem in sorted(listing.problems)],
        groups=listing.groups if any(listing.groups) else None,
        times=listing.times_of_rows(),
    )


def read_paths(manifest: Path) -> Iterator[str]:
    """Yield the path in every line, ignoring other columns. Raises DataError as lines are read."""
    header, rows = read_table(manifest)
    names = [normalize_column(name) for name in header]
    column = next((names.index(name) for name in PATH_COLUMNS if name in names), None)
    if column is None:
        raise DataError(
            f"{manifest} has no column of paths; it has: {', '.join(header) or 'none'}. "
            "Name the column path"
        )
    for line, cells in rows:
        try:
            yield _parse_path(_check_width(cells, len(header))[column])
        except ValueError as error:
            raise DataError(f"{manifest}, line {line}: {error}") from error


class _Listing:
    """Collects a file's entries: each becomes a row or a problem."""

    def __init__(self, file: Path, folder: str, facts: Sequence[str]) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self.groups: list[str] = []
        self.times: list[float | None] = []
        self.problems: list[tuple[int, Problem]] = []  # (line, problem)
        self.digest = hashlib.sha256(file_state_bytes("\0".join(facts), file.stat()))

    def add(self, entries: Sequence[Entry]) -> None:
        """Add all entries of one file: at most one becomes a row, the others problems."""
        self._reject((entry for entry in entries if not entry.label), "has no label")
        entries = [entry for entry in entries if entry.label]
        reason = _find_contradiction(entries)
        if entries and not reason:
            reason = entries[0].fault or self._check_file(entries[0].path)
        if entries and not reason:
            first = entries[0]
            self.rows.append(Row(first.path, first.label, first.split))
            self.digest.update(repr(self.rows[-1]).encode())
            self.groups.append(max(entry.group for entry in entries))  # the others are empty
            self.times.append(next((e.time for e in entries if e.time is not None), None))
            entries, reason = entries[1:], "listed twice; used once"
        self._reject(entries, reason)

    def first_reason(self, unit: str) -> str:
        """Return an example of the reasons entries cannot be used, to end a message."""
        if not self.problems:
            return ": it is empty"
        line, problem = min(self.problems)
        return f" ({unit} {line}: {problem.path}: {problem.reason})"

    def times_of_rows(self) -> NDArray[np.float64] | None:
        """Return the time of each row, -inf for a missing one; None if all are missing."""
        if all(time is None for time in self.times):
            return None
        return np.array([-np.inf if time is None else time for time in self.times])

    def _reject(self, entries: Iterable[Entry], reason: str) -> None:
        for entry in entries:
            self.problems.append((entry.line, Problem(entry.path, "scan", reason)))

    def _check_file(self, path: str) -> str:
        """Return the reason a file is unusable, or add the file to the fingerprint."""
        try:
            facts = Path(self.folder, path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return "listed, but there is no such file"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if not stat.S_ISREG(facts.st_mode):
            return "not a regular file"
        self.digest.update(file_state_bytes(path, facts))
        return ""


def _group_by_file(entries: Iterable[Entry], folder: str) -> Iterable[list[Entry]]:
    """Group entries by the file they mean, however its path is spelt."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        file = os.path.normpath(os.path.join(folder, entry.path))
        groups.setdefault(file, []).append(entry)
    return groups.values()


def _find_contradiction(entries: Sequence[Entry]) -> str:
    """Return a contradiction between entries of one file, or nothing."""
    facts: dict[str, list[str]] = {
        "under {} labels": sorted({entry.label for entry in entries}),
        "in {} splits": [SPLIT_NAMES[split] for split in sorted({e.split for e in entries})],
        "in {} groups": sorted({entry.group for entry in entries} - {""}),
        "at {} times": sorted({str(entry.time) for entry in entries} - {"None"}),
    }
    for phrase, values in facts.items():
        if len(values) > 1:
            count = "two" if len(values) == 2 else str(len(values))
            return f"listed {phrase.format(count)}: {', '.join(values)}"
    return ""


class _Columns(NamedTuple):
    """The positions of the columns in the header."""

    path: int
    label: int
    split: int | None
    group: int | None
    time: int | None


def _find_columns(header: Sequence[str], manifest: Path, label: str) -> _Columns:
    names = [normalize_column(name) for name in header]

    def find(options: Sequence[str]) -> int | None:
        return next((names.index(name) for name in options if name in names), None)

    read = KNOWN_COLUMNS | {normalize_column(label)} - {""}
    twice = next((name for name in names if name in read and names.count(name) > 1), None)
    if twice:
        raise DataError(
            f"{manifest} has two columns named {twice}, whether in upper or lower case; rename one "
            "of them"
        )
    path, labels = find(PATH_COLUMNS), find(_find_label_column(names, manifest, label))
    if path is None or labels is None:
        needed = {"path": path, normalize_column(label) or "label": labels}
        missing = [name for name, position in needed.items() if position is None]
        raise DataError(
            f"{manifest} has no column named {' and none named '.join(missing)}; it has: "
            f"{', '.join(header) or 'none'}. Name the columns path, label and, optionally, split, "
            "or name the label column with --label"
        )
    return _Columns(path, labels, find(SPLIT_COLUMNS), find([GROUP_COLUMN]), find([TIME_COLUMN]))


def _find_label_column(names: Sequence[str], manifest: Path, label: str) -> Sequence[str]:
    """Return the name of the label column, if any. Raises DataError if several fit."""
    if label:
        return [normalize_column(label)]
    present = [name for name in LABEL_COLUMNS if name in names]
    if len(present) > 1:
        raise DataError(
            f"{manifest} has the columns {joined(present)}; name the label column with --label"
        )
    return present


def _parse_rows(
    manifest: Path, rows: Iterable[tuple[int, Sequence[object]]], columns: _Columns, width: int
) -> Iterator[Entry]:
    times_are_numbers: set[bool] = set()
    for line, cells in rows:
        try:
            yield _parse_row(line, _check_width(cells, width), columns, times_are_numbers)
        except ValueError as error:
            raise DataError(f"{manifest}, line {line}: {error}") from error


def _parse_row(
    line: int, cells: Sequence[object], columns: _Columns, times_are_numbers: set[bool]
) -> Entry:
    """Return the entry of a line, and add the kind of its time to the set. Raises ValueError."""
    split, group, time = (
        None if position is None else parse_cell(cells[position])
        for position in (columns.split, columns.group, columns.time)
    )
    path, label = _parse_path(cells[columns.path]), parse_label(cells[columns.label])
    moment = _parse_time(time)
    if moment is not None:
        times_are_numbers.add(isinstance(moment, float))
    if len(times_are_numbers) > 1:
        raise ValueError("some times are dates and others numbers; use one kind in all lines")
    seconds = moment.timestamp() if isinstance(moment, datetime.datetime) else moment
    return Entry(line, path, label, _parse_split(split), _parse_group(group), seconds)


def _check_width(cells: Sequence[object], width: int) -> Sequence[object]:
    if len(cells) != width:
        raise ValueError(f"{len(cells)} cells, but the header names {width} columns")
    return cells


def _parse_path(cell: object) -> str:
    if not isinstance(cell, str) or not cell or "\0" in cell:
        raise ValueError(f"the path is {cell!r}")
    return cell


def _parse_split(cell: object) -> int:
    word = "" if cell is None else str(cell).strip()
    if not word:
        return UNSPLIT
    if word.lower() not in SPLIT_WORDS:
        raise ValueError(f"unknown split '{word}'; known splits are {', '.join(SPLIT_WORDS)}")
    return SPLIT_WORDS[word.lower()]


def _parse_group(cell: object) -> str:
    return "" if cell is None else str(cell).strip()


def _parse_time(cell: object) -> datetime.datetime | float | None:
    """Return an ISO 8601 date or time, by default in UTC, or any number."""
    if isinstance(cell, datetime.date) and not isinstance(cell, datetime.datetime):
        cell = str(cell)
    if isinstance(cell, str):
        text = cell.strip()
        if not text:
            return None
        try:
            cell = parse_cell(float(text))
        except ValueError:
            cell = _parse_iso(text)
    if isinstance(cell, datetime.datetime):
        return cell if cell.tzinfo else cell.replace(tzinfo=datetime.UTC)
    if cell is None:
        return None
    if not isinstance(cell, int | float) or not math.isfinite(cell):
        raise ValueError(f"the time is {cell!r}; give a date such as 2026-05-31, or a number")
    return float(cell)


def _parse_iso(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(
            f"the time is '{text}'; give a date such as 2026-05-31 or 2026-05-31T14:30, or a number"
        ) from error
