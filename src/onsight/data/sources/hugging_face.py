"""Hugging Face image data sets, here or remote: Parquet files with a column of images.

Source: https://huggingface.co/docs/datasets/image_dataset (images are structs of bytes and path;
class names are in the schema's metadata).
"""

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onsight.data.shards.store import LocalShards, ShardStore
from onsight.data.shards.store_file import StoreFile
from onsight.data.shards.table import ShardRows, ShardTable, read_table, table_place
from onsight.data.sources.read_file import check_size
from onsight.data.sources.sharded import sharded_source
from onsight.data.sources.source import HERE, Room, Shards, Source, fingerprint
from onsight.data.sources.split_of_name import split_of_name
from onsight.errors import DataError, ImageError
from onsight.limits import ROW_GROUP_BYTES
from onsight.words import listed

_LABELS = ("label", "labels", "class", "fine_label")
_GROUPS_KEPT = 24  # row groups of images in memory: those that a shuffled epoch reads at once


class _Columns(NamedTuple):
    """The names of the columns, and of the classes by number, if the file has these."""

    image: str
    label: str
    classes: Sequence[str]


def holds_hugging_face(folder: Path) -> bool:
    """Whether a folder has Parquet files of images, itself or in its folder `data`."""
    return any(is_hugging_face(path) for path in _files(folder)[:1])


def is_hugging_face(path: Path) -> bool:
    """Whether a Parquet file has a column of images."""
    if path.suffix.lower() != ".parquet":
        return False
    try:
        from pyarrow.parquet import read_schema

        return _image_column(read_schema(path)) is not None
    except (ImportError, OSError, ValueError):  # pyarrow's own errors are ValueErrors
        return False


def read_hugging_face(path: Path, label: str = "", cache_folder: Path | None = None) -> Source:
    """The images in a Parquet file, or in those of a folder, whose names say the split.

    label: the column of labels, if its name does not tell; cache_folder: where the index is kept.
    Raises DataError for files that differ in their columns, or have no label.
    """
    root = Path(os.path.realpath(path))
    files = _files(root) if root.is_dir() else [root]
    return parquet_source(root, LocalShards(root, files), label, cache_folder)


def parquet_source(
    root: Path,
    store: ShardStore,
    label: str,
    cache_folder: Path | None,
    room: Room = HERE,
) -> Source:
    """The images of these Parquet files. room: for copies of the shards."""
    columns = _columns(store, 0, label)
    place = table_place(cache_folder, "huggingface", str(root), columns)

    def read(number: int) -> ShardRows:
        if number and _columns(store, number, label) != columns:
            names = store.shards[number].name, store.shards[0].name
            raise DataError(f"{root}: {names[0]} has other columns or classes than {names[1]}")
        return _rows(store, number, columns)

    table = read_table(store, read, place)
    reader = _GroupReader(store, table, columns.image)
    what = f"Hugging Face Parquet, columns {columns.image} and {columns.label}"
    shards = Shards(reader.group_of, reader.file_of, reader.expect, room)
    how = ("huggingface", what, split_of_name)
    source = sharded_source(*how, root, table, reader, shards)
    return replace(source, fingerprint=fingerprint([source.fingerprint, columns]))


def _files(folder: Path) -> list[Path]:
    """The Parquet files of a folder, or of its folder `data`, by name."""
    found: list[Path] = sorted(folder.glob("*.parquet"))
    return found or sorted(folder.glob("data/*.parquet"))


def _columns(store: ShardStore, number: int, label: str) -> _Columns:
    import pyarrow
    from pyarrow.parquet import read_schema

    path = store.shards[number].name
    try:
        schema = read_schema(StoreFile(store, number))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file, or is broken: {error}") from error
    image = _image_column(schema)
    present = [name for name in ([label] if label else _LABELS) if name in schema.names]
    if len(present) > 1:
        raise DataError(
            f"{path} has the columns {listed(present)}; name the one of the labels with --label"
        )
    if image is None or not present:
        raise DataError(
            f"{path} has no column of {'images' if image is None else 'labels'}; it has: "
            f"{listed(schema.names)}. Labels are in a column named {' or '.join(_LABELS)}, or in "
            "the one that --label names"
        )
    return _Columns(image, present[0], _class_names(schema, present[0]))


def _image_column(schema: Any) -> str | None:
    """The first column of structs that hold bytes."""
    import pyarrow

    for field in schema:
        if pyarrow.types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0:
            return str(field.name)
    return None


def _class_names(schema: Any, label: str) -> tuple[str, ...]:
    """The names of a ClassLabel's classes by number; empty if there are none."""
    try:
        facts = json.loads((schema.metadata or {})[b"huggingface"])
        names = facts["info"]["features"][label]["names"]
        return tuple(str(name) for name in names)
    except (ValueError, LookupError, TypeError):
        return ()


def _rows(store: ShardStore, number: int, columns: _Columns) -> ShardRows:
    """A file's rows, row group by row group. Raises DataError."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    shard = store.shards[number]
    labels: list[str] = []
    places: list[tuple[int, int]] = []
    try:
        with ParquetFile(StoreFile(store, number)) as table:
            for group in range(table.num_row_groups):
                _check_group(shard.name, table.metadata.row_group(group))
                found = table.read_row_group(group, [columns.label]).column(0).to_pylist()
                labels += [_name(label, columns) for label in found]
                places += [(group, row) for row in range(len(found))]
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{shard.name} is not a Parquet file, or is broken: {error}") from error
    locators = [f"{shard.name}/{group}/{row}" for group, row in places]
    if "" in labels:
        raise DataError(f"{locators[labels.index('')]} has no label; remove such rows")
    return ShardRows.of(shard, locators, labels, places, [])


def _check_group(file: str, facts: Any) -> None:
    if facts.total_byte_size > ROW_GROUP_BYTES:
        raise DataError(
            f"{file} has a row group of {facts.total_byte_size / 1e9:.1f} GB; write it again with "
            "smaller ones, such as to_parquet(..., batch_size=1000)"
        )


def _name(label: object, columns: _Columns) -> str:
    if isinstance(label, int) and columns.classes:
        if not 0 <= label < len(columns.classes):
            raise DataError(f"label {label}, but there are only {len(columns.classes)} names")
        return columns.classes[label]
    return "" if label is None else str(label)


class _GroupReader:
    """Reads row i; keeps the row groups that were read last.

    group_of: int32 (n,) the row group of each row, counted over all files; file_of: int32 of each
    group.
    """

    def __init__(self, store: ShardStore, table: ShardTable, image: str) -> None:
        self._store, self._image = store, image
        file_of = table.shard_of.astype(np.int64)
        self._places = table.places[:, 1]
        pairs = np.stack([file_of, table.places[:, 0]], axis=1)
        self._groups, group_of = np.unique(pairs, axis=0, return_inverse=True)
        self.group_of = group_of.reshape(-1).astype(np.int32)
        self.file_of = self._groups[:, 0].astype(np.int32)
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, row: int) -> bytes:
        """The encoded bytes of an image. Raises ImageError."""
        cell = self._images(int(self.group_of[row]))[int(self._places[row])]
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if content is None:
            raise ImageError("the Parquet file holds only its path, not the image itself")
        check_size(len(content))
        return bytes(content)

    def expect(self, groups: Sequence[int]) -> None:
        """Be told which row groups come next."""
        files = dict.fromkeys(int(self._groups[group, 0]) for group in groups)
        self._store.expect(list(files))

    def _images(self, place: int) -> list[Any]:
        with self._lock:  # threads ask for neighbours at the same time
            if place in self._kept:
                self._kept.move_to_end(place)
            else:
                self._kept[place] = self._read(*self._groups[place].tolist())
            while len(self._kept) > _GROUPS_KEPT:
                self._kept.popitem(last=False)
            return self._kept[place]

    def _read(self, file: int, group: int) -> list[Any]:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(StoreFile(self._store, file)) as table:
                cells: list[Any] = table.read_row_group(group, [self._image]).column(0).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise ImageError(f"cannot be read: {error}") from error
        return cells
