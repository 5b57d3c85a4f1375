"""Read tables of any manifest format: CSV, TSV, JSON lines and Parquet."""

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from onsight.errors import DataError
from onsight.installation import require
from onsight.limits import PARQUET_ROWS, ROWS_A_BYTE
from onsight.untrusted import parse_json, read_csv, read_lines

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image", "image_path")
LABEL_COLUMNS = ("label", "class", "category", "target")
SPLIT_COLUMNS = ("split", "set", "subset", "partition")
GROUP_COLUMN, TIME_COLUMN = "group", "time"
KNOWN_COLUMNS = {*PATH_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS, GROUP_COLUMN, TIME_COLUMN}

# The header, and for each row its line (from 1) and its cells in the header's order.
Table = tuple[Sequence[str], Iterable[tuple[int, Sequence[object]]]]


def read_table(path: Path, label: str = "") -> Table:
    """Return a table's header and rows; the format follows from the ending of the file's name.

    label: a column to read besides the columns with known names. Raises DataError, also while the
    rows are read.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path} does not end in one of {', '.join(READERS)}")
    return reader(path, KNOWN_COLUMNS | {normalize_column(label)})


def parse_cell(cell: object) -> object:
    """Return a cell's value, None if it is missing, which pandas and Arrow may write as NaN."""
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)  # pandas turns integers beside missing values into floats
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def parse_label(cell: object) -> str:
    """Return a label as text, empty if it is missing. Raises ValueError."""
    value = parse_cell(cell)
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"the label is neither text nor a number, but {type(value).__name__}")
    return "" if value is None else unicodedata.normalize("NFC", str(value).strip())


def normalize_column(name: str) -> str:
    """Return a column's name in the form used for comparison."""
    return name.strip().lower()


def _read_csv(path: Path, wanted: Set[str]) -> Table:
    rows = read_csv(path)
    header = next(rows, (0, []))[1]
    return header, rows


def _read_json_lines(path: Path, wanted: Set[str]) -> Table:
    """Read JSON lines; the keys of the first line are the header."""
    objects = _json_objects(path)
    first_line, first = next(objects, (0, {}))
    header = list(first)

    def rows() -> Iterator[tuple[int, list[object]]]:
        yield first_line, list(first.values())
        for line, item in objects:
            new = [name for name in item.keys() - first.keys() if normalize_column(name) in wanted]
            if new:
                raise DataError(
                    f"{path}, line {line}: has '{min(new)}', which the first line does not have"
                )
            yield line, [item.get(name) for name in header]

    return header, rows()


def _json_objects(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip():
            continue
        try:
            item = parse_json(text)
        except ValueError as error:
            raise DataError(f"{path}, line {line}: not valid JSON: {error}") from error
        if not isinstance(item, dict):
            raise DataError(f"{path}, line {line}: not a JSON object but {text[:40]!r}")
        yield line, item


def _read_parquet(path: Path, wanted: Set[str]) -> Table:
    require("pyarrow", "parquet", f"reading {path}", error=DataError)
    import pyarrow
    from pyarrow.parquet import ParquetFile

    with parquet_errors(path):
        file = ParquetFile(path)
        header, count = list(file.schema_arrow.names), file.metadata.num_rows
        read = [field for field in file.schema_arrow if normalize_column(field.name) in wanted]
        columns = [field.name for field in read]  # others may hold pixels
        # As a dictionary, a long text that many rows have is kept once.
        flat = [field.name for field in read if not pyarrow.types.is_nested(field.type)]
        batches = ParquetFile(path, read_dictionary=flat).iter_batches(columns=columns)
    refuse_many_rows(path, count, path.stat().st_size)

    def rows() -> Iterator[tuple[int, Sequence[object]]]:
        with parquet_errors(path):
            cells = (row for batch in batches for row in _batch_rows(batch, header, columns))
            yield from enumerate(cells, 1)

    return header, rows()


@contextmanager
def parquet_errors(path: Path | str) -> Iterator[None]:
    """Turn the errors of reading a Parquet file, or a value Python cannot hold, into DataError."""
    import pyarrow

    try:
        yield
    except (
        pyarrow.ArrowException,
        ArithmeticError,
        LookupError,
        OSError,
        UnicodeDecodeError,
    ) as error:
        raise DataError(f"{path} is not a Parquet file, or is broken: {error}") from error


def refuse_many_rows(path: Path | str, count: int, size: int) -> None:
    """Raise DataError for a Parquet file with far more rows than its bytes can tell apart."""
    if count > PARQUET_ROWS + ROWS_A_BYTE * size:
        raise DataError(f"{path} is suspiciously compressed: {count:,} rows in {size:,} bytes")


def _batch_rows(
    batch: Any, header: Sequence[str], columns: Sequence[str]
) -> Iterator[Sequence[object]]:
    """Return the rows of a pyarrow RecordBatch, with None in columns that were not read."""
    cells = {name: column_cells(batch.column(name)) for name in columns}
    return zip(*(cells.get(name, repeat(None)) for name in header), strict=False)


def column_cells(column: Any) -> list[object]:
    """Return the values of a pyarrow Array, which are shared by the rows of a dictionary."""
    dictionary = getattr(column, "dictionary", None)
    if dictionary is None:
        return list(column.to_pylist())
    column.validate(full=True)  # a broken file may have a negative index
    values = dictionary.to_pylist()
    return [None if index is None else values[index] for index in column.indices.to_pylist()]


READERS: dict[str, Callable[[Path, Set[str]], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}
