"""Roboflow's `_classes.csv` beside the images: a column for each class.

Source: https://docs.roboflow.com/datasets/dataset-versions/exporting-data (multi-class CSV)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from onsight.data.sources.manifest import list_entries
from onsight.data.sources.manifest_entries import Entry, naming_faults
from onsight.data.sources.manifest_tables import plain_name, read_table
from onsight.data.sources.source import Source
from onsight.data.sources.split_of_name import split_of_name
from onsight.errors import DataError

_TABLE = "_classes.csv"


def holds_roboflow(folder: Path) -> bool:
    """Whether a folder has Roboflow's tables, itself or in its folders."""
    return bool(_tables(folder))


def read_roboflow(folder: Path) -> Source:
    """The images of Roboflow's tables, with the split that their folder names.

    An image of no class, or of several, becomes a problem. Raises DataError.
    """
    folder = folder.absolute()
    entries = [entry for table in _tables(folder) for entry in _entries(table, folder)]
    return list_entries(folder, entries, "roboflow", "Roboflow export", root=folder)


def _tables(folder: Path) -> list[Path]:
    return sorted([*folder.glob(_TABLE), *folder.glob(f"*/{_TABLE}")])


def _entries(table: Path, folder: Path) -> Iterator[Entry]:
    """An entry for each class that a line marks; one without a label if it marks none."""
    beside = table.parent.relative_to(folder)
    split = split_of_name(beside.name)
    with naming_faults(table):
        header, rows = read_table(table)
        if not header or plain_name(header[0]) != "filename" or len(header) < 2:
            raise DataError(f"{table} does not begin with filename and a column for each class")
        classes = [name.strip() for name in header[1:]]
        for line, (name, *marks) in rows:
            for label in _marked(table, line, classes, marks) or [""]:
                yield Entry(line, str(beside / str(name).strip()), label, split)


def _marked(table: Path, line: int, classes: list[str], marks: Sequence[object]) -> list[str]:
    values = [str(mark).strip() for mark in marks]
    if len(values) != len(classes) or not {"0", "1"}.issuperset(values):
        raise DataError(f"{table}, line {line}: one 0 or 1 for each class is needed")
    return [label for label, value in zip(classes, values, strict=True) if value == "1"]
