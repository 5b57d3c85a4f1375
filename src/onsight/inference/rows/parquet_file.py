"""Rows in a Parquet file, a row group after the other."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from onsight.errors import ConfigError
from onsight.files import NewFile, disk_errors
from onsight.inference.predictor import Prediction
from onsight.inference.rows.counts import Counts
from onsight.version import installed_as

_GROUP_ROWS = 2**14


def refuse_without_pyarrow(path: Path) -> None:
    """Raise ConfigError if Parquet files cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"writing {path} needs pyarrow: pip install '{installed_as()}[parquet]', or choose "
            "--csv or --jsonl"
        ) from error


class TableColumns(Protocol):
    """What rows say, as Parquet holds it."""

    @property
    def schema(self) -> Any:
        """The names and types of the columns, as pyarrow's Schema."""
        ...

    def record(self, one: Prediction) -> dict[str, Any]:
        """A row as plain values by name."""
        ...


class ParquetFile:
    """A Sink of rows with lists in them; the file has its name only once it is complete."""

    def __init__(self, path: Path, columns: TableColumns) -> None:
        from pyarrow.parquet import ParquetWriter

        self._path = path
        self._columns = columns
        self._schema = columns.schema
        self._waiting: list[dict[str, Any]] = []
        with disk_errors(path):
            self._new = NewFile(path)
            self._writer = ParquetWriter(self._new.file, self._schema)

    def write(self, rows: Sequence[Prediction]) -> None:
        """More rows."""
        self._waiting += [_utf8(self._columns.record(one)) for one in rows]
        if len(self._waiting) >= _GROUP_ROWS:
            self._write_group()

    def finish(self, counts: Counts) -> None:
        """Give the file its name."""
        if self._waiting:
            self._write_group()
        with disk_errors(self._path):
            self._writer.close()
            self._new.finish()

    def close(self) -> None:
        """Without its last part, a Parquet file cannot be read at all."""
        with closing(self._new), disk_errors(self._path):
            self._writer.close()

    def _write_group(self) -> None:
        from pyarrow import Table

        with disk_errors(self._path):
            self._writer.write_table(Table.from_pylist(self._waiting, self._schema))
        self._waiting = []


def _utf8(row: dict[str, Any]) -> dict[str, Any]:
    """A row as Parquet can hold it; a path's bytes that are not UTF-8 show as \\xe9."""
    path = row["path"].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return row | {"path": path}
