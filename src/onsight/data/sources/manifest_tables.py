"""Manifest files as tables: CSV, TSV, JSON lines and Parquet."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import repeat
from pathlib import Path
from typing import Any

from onsight.errors import DataError
from onsight.limits import MANIFEST_LINE_CHARACTERS
from onsight.version import installed_as

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "category", "target")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
GROUP_COLUMN, TIME_COLUMN = "group", "time"
KNOWN_COLUMNS = {*PATH_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS, GROUP_COLUMN, TIME_COLUMN}

# A header, and for each row its line (from 1) and its cells in the header's order.
Table = tuple[Sequence[str], Iterable[tuple[int, Sequence[object]]]]


def read_table(manifest: Path, label: str = "") -> Table:
    """A manifest's header and rows; the format follows from the ending of its name.

    label: a column that matters besides those known by their names. Raises DataError for a
    malformed line or file, OSError, UnicodeDecodeError; so do the rows while they are being read.
    """
    reader = READERS.get(manifest.suffix.lower())
    if reader is None:
        raise DataError(f"{manifest} does not end in one of {', '.join(READERS)}")
    return reader(manifest, KNOWN_COLUMNS | {plain_name(label)})


def plain_name(column: str) -> str:
    """A column's name in the form used for comparison."""
    return column.strip().lower()


def _csv_table(manifest: Path, wanted: Set[str]) -> Table:
    rows = _csv_rows(manifest)
    header = next(rows, (0, []))[1]
    return header, rows


def _csv_rows(manifest: Path) -> Iterator[tuple[int, list[str]]]:
    with open(manifest, newline="", encoding="utf-8-sig") as file:
        first = file.readline(2**16)
        file.seek(0)
        rows = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
        try:
            yield from ((rows.line_num, cells) for cells in rows if cells)
        except csv.Error as error:
            raise DataError(f"{manifest}, line {rows.line_num}: {error}") from error


def _json_table(manifest: Path, wanted: Set[str]) -> Table:
    """JSON lines; the first one's keys are the header."""
    objects = _json_objects(manifest)
    first_line, first = next(objects, (0, {}))
    header = list(first)

    def rows() -> Iterator[tuple[int, list[object]]]:
        yield first_line, list(first.values())
        for line, item in objects:
            _refuse_new_columns(f"{manifest}, line {line}", item, first, wanted)
            yield line, [item.get(name) for name in header]

    return header, rows()


def _refuse_new_columns(
    where: str, item: dict[str, object], first: dict[str, object], wanted: Set[str]
) -> None:
    """Raise DataError for a column that matters but is missing from the first line."""
    if item.keys() <= first.keys():
        return
    new = [name for name in item.keys() - first.keys() if plain_name(name) in wanted]
    if new:
        raise DataError(f"{where}: has '{min(new)}', which the first line does not have")


def _json_objects(manifest: Path) -> Iterator[tuple[int, dict[str, object]]]:
    with open(manifest, encoding="utf-8-sig") as file:
        for line, text in enumerate(iter(lambda: file.readline(MANIFEST_LINE_CHARACTERS), ""), 1):
            if len(text) == MANIFEST_LINE_CHARACTERS:
                raise DataError(
                    f"{manifest}, line {line}: over {MANIFEST_LINE_CHARACTERS:,} characters"
                )
            if not text.strip():
                continue
            try:
                item = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{manifest}, line {line}: not valid JSON: {error}") from error
            if not isinstance(item, dict):
                raise DataError(f"{manifest}, line {line}: not a JSON object but {text[:40]!r}")
            yield line, item


def _parquet_table(manifest: Path, wanted: Set[str]) -> Table:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(
            f"reading {manifest} needs pyarrow: pip install '{installed_as()}[parquet]'"
        ) from error
    try:
        header = list(ParquetFile(manifest).schema_arrow.names)
        read = [name for name in header if plain_name(name) in wanted]  # others may hold pixels
        batches = ParquetFile(manifest).iter_batches(columns=read)
    except (pyarrow.ArrowException, OSError) as error:
        raise _broken_parquet(manifest, error) from error

    def rows() -> Iterator[tuple[int, Sequence[object]]]:
        try:
            cells = (row for batch in batches for row in _rows(batch, header, read))
            yield from enumerate(cells, 1)
        except (pyarrow.ArrowException, OSError) as error:
            raise _broken_parquet(manifest, error) from error

    return header, rows()


def _rows(batch: Any, header: Sequence[str], read: Sequence[str]) -> Iterator[Sequence[object]]:
    """The rows of a pyarrow RecordBatch, with None in columns that were not read."""
    cells = {name: batch.column(name).to_pylist() for name in read}
    return zip(*(cells.get(name, repeat(None)) for name in header), strict=False)


def _broken_parquet(manifest: Path, error: Exception) -> DataError:
    return DataError(f"{manifest} is not a Parquet file, or is broken: {error}")


READERS: dict[str, Callable[[Path, Set[str]], Table]] = {
    ".csv": _csv_table,
    ".tsv": _csv_table,
    ".jsonl": _json_table,
    ".ndjson": _json_table,
    ".parquet": _parquet_table,
}
