"""A manifest: a table that lists images with their labels and, optionally, their splits."""

import hashlib
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.data.file_state import identity
from onsight.data.index import SPLIT_NAMES, Index, Problem, Row
from onsight.data.sources.folder import FileReader
from onsight.data.sources.manifest_entries import Entry, read_entries
from onsight.data.sources.manifest_tables import READERS
from onsight.data.sources.source import Source, found_line
from onsight.errors import DataError
from onsight.words import plural


def is_manifest(path: Path) -> bool:
    """Whether a file's name has the ending of a manifest."""
    return path.suffix.lower() in READERS


def read_manifest(manifest: Path, label: str = "") -> Source:
    """The images that a CSV, TSV, JSON lines or Parquet file lists.

    Paths are relative to the manifest's folder. label: the column of labels. Raises DataError for a
    manifest that cannot be parsed or has no usable image.
    """
    manifest = manifest.absolute()
    columns, lines = read_entries(manifest, label)
    what = f"{manifest.suffix[1:].upper()} manifest"
    return list_entries(manifest, lines, "manifest", what, [f"columns {columns}"])


def list_entries(
    file: Path,
    entries: Iterable[Entry],
    kind: str,
    what: str,
    notes: Sequence[str] = (),
    unit: str = "line",
    root: Path | None = None,
) -> Source:
    """The images that a file lists; an entry that cannot be used becomes a problem.

    what: the file's form in words, for the user; unit: what an entry is there; root: of the paths,
    if not the file's folder. Raises DataError if no entry can be used.
    """
    root = root or file.parent
    listing = _Listing(file, str(root), (kind, *notes))
    for same in _by_file(entries, str(root)):
        listing.judge(same)
    if not listing.rows:
        raise DataError(f"{file} lists no usable image{listing.first_reason(unit)}")
    index = Index.of(listing.rows)
    return Source(
        kind=kind,
        root=file,
        index=index,
        read=FileReader(str(root), index.locators),
        fingerprint=listing.digest.hexdigest(),
        found=found_line(what, index, plural(listing.lines, unit), notes),
        problems=[problem for _, problem in sorted(listing.problems)],
        groups=listing.groups if any(listing.groups) else None,
        times=listing.times_of_rows(),
    )


class _Listing:
    """The outcome of a file's entries: each becomes a row or a problem."""

    def __init__(self, file: Path, folder: str, facts: Sequence[str]) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self.groups: list[str] = []
        self.times: list[float | None] = []
        self.problems: list[tuple[int, Problem]] = []
        self.digest = hashlib.sha256(identity("\0".join(facts), file.stat()))

    @property
    def lines(self) -> int:
        """The number of entries judged."""
        return len(self.rows) + len(self.problems)

    def first_reason(self, unit: str) -> str:
        """An example of why entries cannot be used."""
        if not self.problems:
            return ": it is empty"
        line, problem = min(self.problems)
        return f" ({unit} {line}: {problem.path}: {problem.reason})"

    def times_of_rows(self) -> NDArray[np.float64] | None:
        """The time of each row, the earliest possible where it has none; None if none has one."""
        if all(time is None for time in self.times):
            return None
        return np.array([-np.inf if time is None else time for time in self.times])

    def judge(self, entries: Sequence[Entry]) -> None:
        """Sort in all entries of one file: at most one row, and problems for the others."""
        self._refuse((entry for entry in entries if not entry.label), "has no label")
        entries = [entry for entry in entries if entry.label]
        reason = _contradiction(entries)
        if entries and not reason:
            reason = self._look(entries[0].path)
        if entries and not reason:
            first = entries[0]
            self.rows.append(Row(first.path, first.label, first.split))
            self.digest.update(repr(self.rows[-1]).encode())
            self.groups.append(first.group)
            self.times.append(first.time)
            entries, reason = entries[1:], "listed twice; used once"
        self._refuse(entries, reason)

    def _refuse(self, entries: Iterable[Entry], reason: str) -> None:
        for entry in entries:
            self.problems.append((entry.line, Problem(entry.path, "scan", reason)))

    def _look(self, path: str) -> str:
        """Why a file cannot be used; if it can, nothing, and it goes into the fingerprint."""
        try:
            facts = Path(self.folder, path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return "listed, but there is no such file"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if not stat.S_ISREG(facts.st_mode):
            return "not a regular file"
        self.digest.update(identity(path, facts))
        return ""


def _by_file(entries: Iterable[Entry], folder: str) -> Iterable[list[Entry]]:
    """Entries grouped by file, however its path is spelt."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        file = os.path.normpath(os.path.join(folder, entry.path))
        groups.setdefault(file, []).append(entry)
    return groups.values()


def _contradiction(entries: Sequence[Entry]) -> str:
    """How entries of one file contradict each other, or nothing."""
    labels = sorted({entry.label for entry in entries})
    if len(labels) > 1:
        return f"listed under {_number(labels)} labels: {', '.join(labels)}"
    splits = [SPLIT_NAMES[split] for split in sorted({entry.split for entry in entries})]
    return f"listed in {_number(splits)} splits: {', '.join(splits)}" if len(splits) > 1 else ""


def _number(items: Sequence[str]) -> str:
    return "two" if len(items) == 2 else str(len(items))
