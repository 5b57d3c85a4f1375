"""Labels of whole images as annotation tools export them: Label Studio, CVAT tags and Roboflow.

Sources: https://labelstud.io/guide/export (JSON and JSON_MIN),
https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/,
https://docs.roboflow.com/datasets/dataset-versions/exporting-data (multi-class CSV)
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree.ElementTree import Element

from onsight.data.index import UNSPLIT
from onsight.data.sources.annotation_files import (
    Found,
    ImageFinder,
    is_coco,
    read_cvat_images,
    read_cvat_split,
)
from onsight.data.sources.manifest import Entry, list_entries
from onsight.data.sources.source import Source, find_split_word
from onsight.data.sources.tables import normalize_column, read_table
from onsight.errors import DataError
from onsight.text import joined
from onsight.untrusted import read_json

_UPLOAD_PREFIX = re.compile(r"^[0-9a-f]{8}-")  # Label Studio's prefix of uploads
# The keys of a JSON_MIN task that are not choices.
_OTHER_KEYS = {"id", "image", "annotator", "annotation_id", "created_at", "updated_at", "lead_time"}
_ROBOFLOW_TABLE = "_classes.csv"


def read_label_studio(file: Path, label: str = "") -> Source:
    """Return the images of a Label Studio export, found by name below its folder.

    label: the name of the choice that is the label, if there are several. Raises DataError.
    """
    file = file.absolute()
    tasks = read_json(file)
    if is_coco(tasks):
        raise DataError(f"{file} is a COCO file of boxes: --crop-boxes makes each an image")
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{file} is neither an export of Label Studio nor a COCO file")
    try:
        choices = [_read_choices(task) for task in tasks]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"{file} is not an export of Label Studio: {type(error).__name__}: {error}"
        ) from error
    name = _find_label_name(file, choices, label)
    entries = _list_tasks(file, tasks, choices, name)
    notes = [f"label {name}"]
    return list_entries(file, entries, "labelstudio", "Label Studio export", notes, unit="task")


def read_cvat(file: Path) -> Source:
    """Return the tagged images of CVAT's XML. Raises DataError if it is something else."""
    file = file.absolute()
    entries = _list_tags(file, read_cvat_images(file))
    return list_entries(file, entries, "cvat", "CVAT tags", unit="image")


def contains_roboflow(folder: Path) -> bool:
    """Return whether a folder has Roboflow's tables, itself or in its folders."""
    return bool(_list_tables(folder))


def read_roboflow(folder: Path) -> Source:
    """Return the images of Roboflow's tables, split by the names of their folders.

    An image of no class, or of several, becomes a problem. Raises DataError.
    """
    folder = folder.absolute()
    entries = [entry for table in _list_tables(folder) for entry in _list_marked(table, folder)]
    return list_entries(folder, entries, "roboflow", "Roboflow export", root=folder)


def _read_choices(task: dict[str, Any]) -> dict[str, set[str]]:
    """Return the labels of a task by the name of the choice."""
    if "annotations" not in task:
        chosen = {name: _read_cell(cell) for name, cell in task.items() if name not in _OTHER_KEYS}
        return {name: labels for name, labels in chosen.items() if labels}
    choices: dict[str, set[str]] = {}
    for annotation in task["annotations"]:
        if annotation.get("was_cancelled"):
            continue
        for result in annotation["result"]:
            if result["type"] == "choices":
                labels = map(str, result["value"]["choices"])
                choices.setdefault(str(result["from_name"]), set()).update(labels)
    return choices


def _read_cell(cell: object) -> set[str]:
    """Return the labels in a cell of JSON_MIN: one label as text, several in an object."""
    if isinstance(cell, dict):
        return set(map(str, cell.get("choices", ())))
    return {cell} if isinstance(cell, str) else set()


def _find_label_name(file: Path, choices: list[dict[str, set[str]]], label: str) -> str:
    """Return the name of the label's choice. Raises DataError if it is missing or ambiguous."""
    names = sorted({name for task_choices in choices for name in task_choices})
    if label in names:
        return label
    if not names:
        raise DataError(f"{file} has no choices: none of its images is labelled")
    if label or len(names) > 1:
        raise DataError(f"{file} has the choices {joined(names)}; name one with --label")
    return names[0]


def _list_tasks(
    file: Path, tasks: list[dict[str, Any]], choices: list[dict[str, set[str]]], name: str
) -> Iterator[Entry]:
    """Yield an entry for each label of a task, or one without a label."""
    addresses = [_read_address(task) for task in tasks]
    images = _find_images(addresses, ImageFinder(file.parent))
    for number, (address, task_choices) in enumerate(zip(addresses, choices, strict=True), 1):
        path, fault = images[address]
        for label in sorted(task_choices.get(name, {""})):
            yield Entry(number, address if fault else path, label.strip(), UNSPLIT, fault=fault)


def _read_address(task: dict[str, Any]) -> str:
    """Return the address of a task's image as it is in the export."""
    data = task.get("data")
    values = [task["image"]] if "image" in task else data.values() if isinstance(data, dict) else ()
    return next((value for value in values if isinstance(value, str)), "")


def _find_images(addresses: Sequence[str], finder: ImageFinder) -> dict[str, Found]:
    """Return the image of each address; those of each host were moved in their own way."""
    hosts: dict[str, dict[str, str]] = defaultdict(dict)  # by host, the name for an address
    for address in addresses:
        host, name = _split_address(address, finder)
        hosts[host][address] = name
    return {
        address: found
        for names in hosts.values()
        for address, found in zip(names, finder.find([*names.values()]), strict=True)
    }


def _split_address(address: str, finder: ImageFinder) -> tuple[str, str]:
    """Return an address's host and an image's name on it, as its file may be called here."""
    try:
        parts = urlsplit(address)
    except ValueError:  # an invalid address, such as one with an unmatched bracket
        return "", address
    local = parse_qs(parts.query).get("d")  # /data/local-files/?d=folder/image.jpg
    path = local[0] if local else unquote(parts.path)
    folder, slash, name = path.rpartition("/")
    if not finder.has_name(name):
        name = _UPLOAD_PREFIX.sub("", name)
    return "local-files" if local else parts.netloc, folder + slash + name


def _list_tags(file: Path, images: list[Element]) -> Iterator[Entry]:
    """Yield an entry for each tag of an image, or one without a label."""
    finder = ImageFinder(file.parent)
    if not any(image.find("tag") is not None for image in images):
        raise DataError(f"{file} has boxes but no tags: --crop-boxes makes each box an image")
    files = finder.find([image.get("name", "") for image in images])
    for line, (image, (path, fault)) in enumerate(zip(images, files, strict=True), 1):
        split = read_cvat_split(image)
        for tag in image.findall("tag") or [Element("tag", label="")]:
            yield Entry(line, path, tag.get("label", "").strip(), split, fault=fault)


def _list_tables(folder: Path) -> list[Path]:
    return sorted([*folder.glob(_ROBOFLOW_TABLE), *folder.glob(f"*/{_ROBOFLOW_TABLE}")])


def _list_marked(table: Path, folder: Path) -> Iterator[Entry]:
    """Yield an entry for each class that a line marks, or one without a label."""
    beside = table.parent.relative_to(folder)
    split = find_split_word(beside.name)
    header, rows = read_table(table)
    if not header or normalize_column(header[0]) != "filename" or len(header) < 2:
        raise DataError(f"{table} does not begin with filename and a column for each class")
    classes = [name.strip() for name in header[1:]]
    for line, (name, *marks) in rows:
        for label in _read_marks(table, line, classes, marks) or [""]:
            yield Entry(line, str(beside / str(name).strip()), label, split)


def _read_marks(table: Path, line: int, classes: list[str], marks: Sequence[object]) -> list[str]:
    values = [str(mark).strip() for mark in marks]
    if len(values) != len(classes) or not {"0", "1"}.issuperset(values):
        raise DataError(f"{table}, line {line}: one 0 or 1 for each class is needed")
    return [label for label, value in zip(classes, values, strict=True) if value == "1"]
