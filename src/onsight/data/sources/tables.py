"""Read tables of any manifest format: CSV, TSV, JSON lines and Parquet."""

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from onsight.errors import DataError
from onsight.installation import require
from onsight.limits import MANIFEST_LINE_CHARACTERS

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "category", "target")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
GROUP_COLUMN, TIME_COLUMN = "group", "time"
KNOWN_COLUMNS = {*PATH_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS, GROUP_COLUMN, TIME_COLUMN}

# The header, and for each row its line (from 1) and its cells in the header's order.
Table = tuple[Sequence[str], Iterable[tuple[int, Sequence[object]]]]


def read_table(path: Path, label: str = "") -> Table:
    """Return a table's header and rows; the format follows from the ending of the file's name.

    label: a column to read besides the columns with known names. Raises DataError for a malformed
    line or file, OSError, UnicodeDecodeError; so does reading the rows.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path} does not end in one of {', '.join(READERS)}")
    return reader(path, KNOWN_COLUMNS | {normalize_column(label)})


@contextmanager
def table_errors(path: Path) -> Iterator[None]:
    """Turn errors of text decoding and of the disk into DataErrors that name the table."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path}{_locate_foreign_text(path)}; save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def normalize_column(name: str) -> str:
    """Return a column's name in the form used for comparison."""
    return name.strip().lower()


def _locate_foreign_text(path: Path) -> str:
    """Return the first place that is not UTF-8, to continue a message that names the file."""
    with open(path, "rb") as file:
        for line, content in enumerate(file, 1):
            try:
                content.decode()
            except UnicodeDecodeError as error:
                if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    return " is UTF-16 text"
                byte, position = content[error.start], error.start + 1
                return f", line {line}: byte 0x{byte:02x} at position {position} is not UTF-8 text"
    return " is not UTF-8 text"


def _read_csv(path: Path, wanted: Set[str]) -> Table:
    rows = _csv_rows(path)
    header = next(rows, (0, []))[1]
    return header, rows


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    with open(path, newline="", encoding="utf-8-sig") as file:
        first = file.readline(2**16)
        file.seek(0)
        rows = csv.reader(file, delimiter=max(",;\t", key=first.count), strict=True)
        try:
            yield from ((rows.line_num, cells) for cells in rows if cells)
        except csv.Error as error:
            raise DataError(f"{path}, line {rows.line_num}: {error}") from error


def _read_json_lines(path: Path, wanted: Set[str]) -> Table:
    """Read JSON lines; the keys of the first line are the header."""
    objects = _json_objects(path)
    first_line, first = next(objects, (0, {}))
    header = list(first)

    def rows() -> Iterator[tuple[int, list[object]]]:
        yield first_line, list(first.values())
        for line, item in objects:
            _refuse_new_columns(f"{path}, line {line}", item, first, wanted)
            yield line, [item.get(name) for name in header]

    return header, rows()


def _refuse_new_columns(
    where: str, item: dict[str, object], first: dict[str, object], wanted: Set[str]
) -> None:
    """Raise DataError for a wanted column that is missing from the first line."""
    if item.keys() <= first.keys():
        return
    new = [name for name in item.keys() - first.keys() if normalize_column(name) in wanted]
    if new:
        raise DataError(f"{where}: has '{min(new)}', which the first line does not have")


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    with open(path, encoding="utf-8-sig") as file:
        for line, text in enumerate(iter(lambda: file.readline(MANIFEST_LINE_CHARACTERS), ""), 1):
            if len(text) == MANIFEST_LINE_CHARACTERS:
                raise DataError(
                    f"{path}, line {line}: over {MANIFEST_LINE_CHARACTERS:,} characters"
                )
            if not text.strip():
                continue
            try:
                item = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {line}: not valid JSON: {error}") from error
            if not isinstance(item, dict):
                raise DataError(f"{path}, line {line}: not a JSON object but {text[:40]!r}")
            yield line, item


def _read_parquet(path: Path, wanted: Set[str]) -> Table:
    require("pyarrow", "parquet", f"reading {path}", error=DataError)
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        header = list(ParquetFile(path).schema_arrow.names)
        columns = [name for name in header if normalize_column(name) in wanted]
        batches = ParquetFile(path).iter_batches(columns=columns)  # other columns may hold pixels
    except (pyarrow.ArrowException, OSError) as error:
        raise _broken_parquet(path, error) from error

    def rows() -> Iterator[tuple[int, Sequence[object]]]:
        try:
            cells = (row for batch in batches for row in _batch_rows(batch, header, columns))
            yield from enumerate(cells, 1)
        except (pyarrow.ArrowException, OSError) as error:
            raise _broken_parquet(path, error) from error

    return header, rows()


def _batch_rows(
    batch: Any, header: Sequence[str], columns: Sequence[str]
) -> Iterator[Sequence[object]]:
    """Return the rows of a pyarrow RecordBatch, with None in columns that were not read."""
    cells = {name: batch.column(name).to_pylist() for name in columns}
    return zip(*(cells.get(name, repeat(None)) for name in header), strict=False)


def _broken_parquet(path: Path, error: Exception) -> DataError:
    return DataError(f"{path} is not a Parquet file, or is broken: {error}")


READERS: dict[str, Callable[[Path, Set[str]], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}
