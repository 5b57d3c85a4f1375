"""Where rows are written: stdout, or a Parquet file."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from onsight.files import NewFile, disk_errors, refuse_foreign
from onsight.inference.predictor import Prediction
from onsight.inference.row_formats import RowCounts, RowFormat
from onsight.installation import require
from onsight.text import printable

_GROUP_ROWS = 2**14  # rows in memory before a row group is written


class Sink(ABC):
    """Takes rows batch by batch. All methods raise DiskError."""

    @abstractmethod
    def write(self, rows: Sequence[Prediction]) -> None:
        """Write more rows."""

    @abstractmethod
    def finish(self, counts: RowCounts) -> None:
        """Complete the output after the last row."""

    def close(self) -> None:  # noqa: B027  # most sinks have nothing to release
        """Release what is open, whether finished or not."""


class Stdout(Sink):
    """Rows on stdout, flushed after every batch."""

    def __init__(self, row_format: RowFormat) -> None:
        self._format = row_format
        write_to_stdout(row_format.head)

    def write(self, rows: Sequence[Prediction]) -> None:
        """Write more rows."""
        write_to_stdout(self._format.rows(rows))

    def finish(self, counts: RowCounts) -> None:
        """Write the tail of the format."""
        write_to_stdout(self._format.tail(counts))


class ParquetFile(Sink):
    """Rows in a Parquet file, which has its name only once it is complete.

    record: returns a row as plain values by column name; schema: the pyarrow.Schema of these.
    """

    def __init__(
        self, path: Path, schema: Any, record: Callable[[Prediction], dict[str, Any]]
    ) -> None:
        from pyarrow.parquet import ParquetWriter

        self._path, self._schema, self._record = path, schema, record
        self._group: list[dict[str, Any]] = []
        with disk_errors(path):
            self._new = NewFile(path)
            self._writer = ParquetWriter(self._new.file, self._schema)

    def write(self, rows: Sequence[Prediction]) -> None:
        """Write more rows."""
        self._group += [_as_utf8(self._record(row)) for row in rows]
        if len(self._group) >= _GROUP_ROWS:
            self._write_group()

    def finish(self, counts: RowCounts) -> None:
        """Write the last rows and give the file its name."""
        if self._group:
            self._write_group()
        with disk_errors(self._path):
            self._writer.close()
            self._new.finish()

    def close(self) -> None:
        """Remove an unfinished file: without its footer, nobody could read it."""
        with closing(self._new), disk_errors(self._path):
            self._writer.close()

    def _write_group(self) -> None:
        from pyarrow import Table

        with disk_errors(self._path):
            self._writer.write_table(Table.from_pylist(self._group, self._schema))
        self._group = []


def require_pyarrow(path: Path, alternative: str) -> None:
    """Raise ConfigError if Parquet files cannot be written; alternative: what to choose instead."""
    require("pyarrow", "parquet", f"writing {path}", f", or choose {alternative}")


def refuse_foreign_parquet(path: Path, columns: Sequence[str], kind: str, flag: str) -> None:
    """Raise OutputError if a file exists that is not a Parquet file that begins with columns."""

    def is_ours(path: Path) -> bool:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema

        try:
            return bool(read_schema(path).names[: len(columns)] == [*columns])
        except (ArrowException, OSError):
            return False

    refuse_foreign(path, is_ours, kind, flag)


def write_to_stdout(text: bytes) -> None:
    """Write bytes to stdout at once, after what was printed before.

    A pipe gets names exactly as they are; on a terminal, their control characters are escaped.
    """
    if sys.stdout.isatty():
        shown = printable(text.decode("utf-8", "surrogateescape"))
        text = shown.encode("utf-8", "surrogateescape")
    sys.stdout.flush()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _as_utf8(value: Any) -> Any:
    r"""Escape the bytes of a row's text that are not UTF-8, as \xe9: Parquet requires UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {name: _as_utf8(item) for name, item in value.items()}
    return [*map(_as_utf8, value)] if isinstance(value, list) else value
