"""Hugging Face image data sets from local Parquet files: a column of pictures, one of labels.

Source: https://huggingface.co/docs/datasets/image_dataset (pictures are structs of bytes and path;
class names are in the schema's metadata).
"""

import json
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onsight.data.index import Index, Problem, Row
from onsight.data.sources.read_file import check_size
from onsight.data.sources.source import Source, fingerprint, found_line, stat_facts
from onsight.data.sources.split_of_name import split_of_name
from onsight.errors import DataError, PictureError
from onsight.limits import ROW_GROUP_BYTES
from onsight.words import listed, plural

_LABELS = ("label", "labels", "class", "fine_label")
_GROUPS_KEPT = 8  # row groups of pictures in memory; threads read neighbouring rows


class _Columns(NamedTuple):
    """The names of the columns, and of the classes by number, if the file has these."""

    image: str
    label: str
    classes: Sequence[str]


class _Group(NamedTuple):
    """A row group of a file, and its first row in the source."""

    path: Path
    number: int
    first: int


def holds_hugging_face(folder: Path) -> bool:
    """Whether a folder has Parquet files of pictures, itself or in its folder `data`."""
    return any(is_hugging_face(path) for path in _files(folder)[:1])


def is_hugging_face(path: Path) -> bool:
    """Whether a Parquet file has a column of pictures."""
    if path.suffix.lower() != ".parquet":
        return False
    try:
        from pyarrow.parquet import read_schema

        return _image_column(read_schema(path)) is not None
    except (ImportError, OSError, ValueError):  # pyarrow's own errors are ValueErrors
        return False


def read_hugging_face(path: Path, label: str = "") -> Source:
    """The pictures in a Parquet file, or in those of a folder, whose names say the split.

    label: the column of labels, if its name does not tell. Raises DataError for files that differ
    in their columns, or have no label.
    """
    root = Path(os.path.realpath(path))
    files = _files(root) if root.is_dir() else [root]
    rows: list[Row] = []
    groups: list[_Group] = []
    problems: list[Problem] = []
    columns = _columns(files[0], label)
    for file in files:
        if _columns(file, label) != columns:
            raise DataError(f"{file} has other columns or classes than {files[0]}")
        _list(file, root, columns, rows, groups, problems)
    if not rows:
        raise DataError(f"{root} holds no pictures")
    index = Index.of(rows)
    return Source(
        kind="huggingface",
        root=root,
        index=index,
        read=_GroupReader(groups, len(rows), columns.image),
        fingerprint=fingerprint(["huggingface", columns, *(stat_facts(file) for file in files)]),
        found=found_line(
            f"Hugging Face Parquet, columns {columns.image} and {columns.label}",
            index,
            plural(len(rows), "picture"),
        ),
        problems=problems,
    )


def _files(folder: Path) -> list[Path]:
    """The Parquet files of a folder, or of its folder `data`, by name."""
    found: list[Path] = sorted(folder.glob("*.parquet"))
    return found or sorted(folder.glob("data/*.parquet"))


def _columns(path: Path, label: str) -> _Columns:
    from pyarrow.parquet import read_schema

    schema = read_schema(path)
    image = _image_column(schema)
    present = [name for name in ([label] if label else _LABELS) if name in schema.names]
    if len(present) > 1:
        raise DataError(
            f"{path} has the columns {listed(present)}; name the one of the labels with --label"
        )
    if image is None or not present:
        raise DataError(
            f"{path} has no column of {'pictures' if image is None else 'labels'}; it has: "
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


def _list(
    file: Path,
    root: Path,
    columns: _Columns,
    rows: list[Row],
    groups: list[_Group],
    problems: list[Problem],
) -> None:
    """Add a file's rows, row group by row group; a row without a label becomes a problem."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    name = file.name if file == root else str(file.relative_to(root))
    split = split_of_name(file.name)
    try:
        with ParquetFile(file) as table:
            for number in range(table.num_row_groups):
                _check_group(file, table.metadata.row_group(number))
                groups.append(_Group(file, number, len(rows)))
                labels = table.read_row_group(number, [columns.label]).column(0).to_pylist()
                for place, label in enumerate(labels):
                    rows.append(Row(f"{name}/{number}/{place}", _name(label, columns), split))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a Parquet file, or is broken: {error}") from error
    unlabelled = [row for row in rows if not row.label]
    if unlabelled:
        raise DataError(f"{unlabelled[0].locator} has no label; remove such rows")


def _check_group(file: Path, facts: Any) -> None:
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
    """Reads row i; keeps the row groups that were read last."""

    def __init__(self, groups: Sequence[_Group], count: int, image: str) -> None:
        self._groups = groups
        self._firsts = [group.first for group in groups]
        self._count = count
        self._image = image
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, row: int) -> bytes:
        """The encoded bytes of a picture. Raises PictureError."""
        place = bisect_right(self._firsts, row) - 1
        cell = self._pictures(place)[row - self._firsts[place]]
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if content is None:
            raise PictureError("the Parquet file holds only its path, not the picture itself")
        check_size(len(content))
        return bytes(content)

    def _pictures(self, place: int) -> list[Any]:
        with self._lock:  # threads ask for neighbours at the same time
            if place in self._kept:
                self._kept.move_to_end(place)
            else:
                self._kept[place] = self._read(self._groups[place])
            while len(self._kept) > _GROUPS_KEPT:
                self._kept.popitem(last=False)
            return self._kept[place]

    def _read(self, group: _Group) -> list[Any]:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(group.path) as table:
                cells: list[Any] = (
                    table.read_row_group(group.number, [self._image]).column(0).to_pylist()
                )
        except (pyarrow.ArrowException, OSError) as error:
            raise PictureError(f"cannot be read: {error}") from error
        return cells
