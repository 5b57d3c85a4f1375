"""Hugging Face image datasets, local or remote: Parquet files with a column of images.

Source: https://huggingface.co/docs/datasets/image_dataset (images are structs of bytes and path;
class names are in the schema's metadata).
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsight.data.decoding_memory import MEMORY
from onsight.data.index import Problem
from onsight.data.shards.store import LocalShards, ShardFile, ShardStore
from onsight.data.shards.table import (
    ShardImage,
    ShardRows,
    ShardTable,
    find_table_file,
    read_shard_table,
)
from onsight.data.sources.read_file import check_size
from onsight.data.sources.source import (
    NO_COPIES,
    CopySpace,
    ShardLayout,
    Source,
    build_table_source,
    compute_fingerprint,
    find_split_word,
)
from onsight.data.sources.tables import (
    GROUP_COLUMN,
    SPLIT_COLUMNS,
    TIME_COLUMN,
    column_cells,
    normalize_column,
    parquet_errors,
    parse_cell,
    parse_label,
    refuse_many_rows,
)
from onsight.errors import DataError, ImageError
from onsight.limits import LABEL_CHARACTERS, ROW_GROUP_BYTES
from onsight.text import joined
from onsight.untrusted import open_regular, parse_json

_LABEL_NAMES = ("label", "labels", "class", "fine_label")
_UNUSED_COLUMNS = {*SPLIT_COLUMNS, GROUP_COLUMN, TIME_COLUMN}
_NO_LABEL = -1  # in the columns of a ClassLabel
_ROWS_AT_ONCE = 64  # rows decompressed at once
_CACHED_GROUPS = 24  # row groups in memory, if it suffices: a shuffled epoch reads so many at once


class _ShardColumns(NamedTuple):
    """The columns that are read from the files."""

    image: str
    label: str
    classes: Sequence[str]  # class names by label, empty if the file has none
    unused: Sequence[str]  # columns that a manifest would have used


def is_hugging_face(path: Path) -> bool:
    """Return whether a path is a Parquet file with a column of images, or a folder of these."""
    files = _list_files(path)
    if not files or files[0].suffix.lower() != ".parquet":
        return False
    try:
        from pyarrow.parquet import read_schema

        with open(open_regular(files[0]), "rb") as file:
            return _find_image_column(read_schema(file)) is not None
    except (ImportError, OSError, ValueError):  # pyarrow's errors are ValueErrors
        return False


def read_hugging_face(path: Path, label: str = "", cache_folder: Path | None = None) -> Source:
    """Return the images in a Parquet file, or in a folder's Parquet files, named after splits.

    label: the column of labels, if it has an unusual name; cache_folder: the index's folder.
    Raises DataError for files that differ in their columns, or have no label.
    """
    root = Path(os.path.realpath(path))
    return open_parquet(root, LocalShards(root, _list_files(root)), label, cache_folder)


def open_parquet(
    root: Path,
    store: ShardStore,
    label: str,
    cache_folder: Path | None,
    copies: CopySpace = NO_COPIES,
) -> Source:
    """Return the images of a store's Parquet files. Raises as `read_hugging_face` does."""
    columns = _read_columns(store, 0, label)
    file = find_table_file(cache_folder, "huggingface", str(root), columns)

    def read(index: int) -> ShardRows:
        if index and _read_columns(store, index, label) != columns:
            names = store.shards[index].name, store.shards[0].name
            raise DataError(f"{root}: {names[0]} has other columns or classes than {names[1]}")
        return _read_rows(store, index, columns)

    table = read_shard_table(store, read, file)
    reader = _GroupReader(store, table, columns.image)
    what = f"Hugging Face Parquet, columns {columns.image} and {columns.label}"
    layout = ShardLayout(reader.group_of_row, reader.file_of_group, reader.prefetch, copies)
    source = build_table_source("huggingface", what, find_split_word, root, table, reader, layout)
    notes = [f"not used: {joined(columns.unused)}; Parquet files of images are split by name"]
    return replace(
        source,
        fingerprint=compute_fingerprint([source.fingerprint, columns]),
        notes=notes if columns.unused else [],
    )


def _list_files(path: Path) -> list[Path]:
    """Return a file itself, or the Parquet files of a folder, or of its folder `data`, by name."""
    if not path.is_dir():
        return [path]
    files: list[Path] = sorted(path.glob("*.parquet"))
    return files or sorted(path.glob("data/*.parquet"))


def _read_columns(store: ShardStore, index: int, label: str) -> _ShardColumns:
    import pyarrow
    from pyarrow.parquet import read_schema

    path = store.shards[index].name
    with parquet_errors(path):
        schema = read_schema(ShardFile(store, index))
    image = _find_image_column(schema)
    present = [name for name in ([label] if label else _LABEL_NAMES) if name in schema.names]
    if len(present) > 1:
        raise DataError(
            f"{path} has the columns {joined(present)}; name the label column with --label"
        )
    if image is None or not present:
        raise DataError(
            f"{path} has no column of {'images' if image is None else 'labels'}; it has: "
            f"{joined(schema.names)}. Labels are in a column named {' or '.join(_LABEL_NAMES)}, "
            "or in the one that --label names"
        )
    twice = next((name for name in (image, present[0]) if schema.names.count(name) > 1), None)
    if twice:
        raise DataError(f"{path} has two columns named {twice}; rename one of them")
    content = schema.field(image).type.field("bytes").type
    if not (pyarrow.types.is_binary(content) or pyarrow.types.is_large_binary(content)):
        raise DataError(f"{path}: the bytes of {image} are {content}, but must be binary")
    kind = schema.field(present[0]).type
    if pyarrow.types.is_nested(kind):
        raise DataError(f"{path}: the labels in {present[0]} are neither text nor numbers: {kind}")
    names = _read_class_names(schema, present[0])
    unused = [name for name in schema.names if normalize_column(name) in _UNUSED_COLUMNS]
    return _ShardColumns(image, present[0], names, unused)


def _find_image_column(schema: Any) -> str | None:
    """Return the first column of structs that contain bytes."""
    import pyarrow

    for field in schema:
        if pyarrow.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    return None


def _read_class_names(schema: Any, label: str) -> tuple[str, ...]:
    """Return the names of a ClassLabel's classes by label; empty if there are none."""
    try:
        facts = parse_json((schema.metadata or {})[b"huggingface"])
        names = facts["info"]["features"][label]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, LookupError, TypeError):
        return ()


def _read_rows(store: ShardStore, index: int, columns: _ShardColumns) -> ShardRows:
    """Return a file's rows, row group by row group. Raises DataError."""
    from pyarrow.parquet import ParquetFile

    shard = store.shards[index]
    images: list[ShardImage] = []
    problems: list[Problem] = []
    with (
        parquet_errors(shard.name),
        # As a dictionary, a long text that many rows have is kept once.
        ParquetFile(ShardFile(store, index), read_dictionary=[columns.label]) as table,
    ):
        refuse_many_rows(shard.name, table.metadata.num_rows, shard.size)
        for group in range(table.num_row_groups):
            _check_group_size(shard.name, table.metadata.row_group(group))
            chunks = table.read_row_group(group, [columns.label]).column(0).chunks
            for row, cell in enumerate(chain.from_iterable(map(column_cells, chunks))):
                locator = f"{shard.name}/{group}/{row}"
                label = _name_label(cell, columns.classes, locator)
                if label:
                    images.append((locator, label, (group, row)))
                else:
                    problems.append(Problem(locator, "scan", "has no label"))
    return ShardRows.of(shard, images, problems)


def _check_group_size(file: str, facts: Any) -> None:
    if facts.total_byte_size > ROW_GROUP_BYTES:
        raise DataError(
            f"{file} has a row group of {facts.total_byte_size / 1e9:.1f} GB; write it again with "
            "smaller ones, such as to_parquet(..., batch_size=1000)"
        )


def _name_label(cell: object, classes: Sequence[str], locator: str) -> str:
    """Return the name of a row's class, empty if it has none. Raises DataError."""
    label = parse_cell(cell)
    if isinstance(label, str) and len(label) > LABEL_CHARACTERS:
        raise DataError(
            f"{locator}: a label of {len(label):,} characters; --label names another column"
        )
    if not isinstance(label, int) or not classes:
        try:
            return parse_label(label)
        except ValueError as error:
            raise DataError(f"{locator}: {error}") from error
    if label >= len(classes) or label < _NO_LABEL:
        raise DataError(f"{locator}: label {label}, but there are only {len(classes)} names")
    return "" if label == _NO_LABEL else classes[label]


class _Group(NamedTuple):
    """The images of a row group."""

    cells: list[Any]
    size: int  # bytes in memory, where equal images are not stored once, as they may be in the file


class _GroupReader:
    """Read row i; keeps the most recently used row groups in memory."""

    def __init__(self, store: ShardStore, table: ShardTable, image: str) -> None:
        self._store, self._image = store, image
        self._row_in_group = table.positions[:, 1]
        file_of_row = table.shard_of_row.astype(np.int64)
        pairs = np.stack([file_of_row, table.positions[:, 0]], axis=1)
        self._groups, group_of_row = np.unique(pairs, axis=0, return_inverse=True)
        self.group_of_row = group_of_row.reshape(-1).astype(np.int32)  # (n,) indices over all files
        self.file_of_group = self._groups[:, 0].astype(np.int32)  # (groups,)
        self._cache: OrderedDict[int, _Group] = OrderedDict()
        self._cache_bytes = max(ROW_GROUP_BYTES, MEMORY.total_bytes)
        self._lock = threading.Lock()

    def __call__(self, row: int) -> bytes:
        """Return the encoded bytes of an image. Raises ImageError."""
        cell = self._read_group(int(self.group_of_row[row])).cells[int(self._row_in_group[row])]
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if content is None:
            raise ImageError("the Parquet file holds only its path, not the image itself")
        check_size(len(content))
        return bytes(content)

    def prefetch(self, groups: Sequence[int]) -> None:
        """Start copying the files of these row groups."""
        files = dict.fromkeys(int(self._groups[group, 0]) for group in groups)
        self._store.prefetch(list(files))

    def _read_group(self, index: int) -> _Group:
        with self._lock:  # threads request neighbouring rows at the same time
            if index in self._cache:
                self._cache.move_to_end(index)
            else:
                self._cache[index] = self._read_cells(*self._groups[index].tolist())
                while len(self._cache) > 1 and self._is_cache_full():
                    self._cache.popitem(last=False)
            return self._cache[index]

    def _is_cache_full(self) -> bool:
        size = sum(group.size for group in self._cache.values())
        return len(self._cache) > _CACHED_GROUPS or size > self._cache_bytes

    def _read_cells(self, file: int, group: int) -> _Group:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        cells: list[Any] = []
        size = 0
        try:
            with ParquetFile(ShardFile(self._store, file)) as table:
                for batch in table.iter_batches(_ROWS_AT_ONCE, [group], [self._image]):
                    size += batch.nbytes
                    if size > ROW_GROUP_BYTES:
                        raise ImageError(f"row group {group} holds over 1 GB of images")
                    cells += batch.column(0).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise ImageError(f"cannot be read: {error}") from error
        return _Group(cells, size)
