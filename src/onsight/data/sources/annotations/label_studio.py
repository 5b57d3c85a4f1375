"""Label Studio's exports, JSON and JSON_MIN, of image classification.

Source: https://labelstud.io/guide/export
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from onsight.data.index import UNSPLIT
from onsight.data.sources.annotations.annotation_file import read_json
from onsight.data.sources.annotations.coco import is_coco
from onsight.data.sources.annotations.image_finder import ImageFinder
from onsight.data.sources.manifest import list_entries
from onsight.data.sources.manifest_entries import Entry
from onsight.data.sources.source import Source
from onsight.errors import DataError, ImageError
from onsight.words import listed

_UPLOADED = re.compile(r"^[0-9a-f]{8}-")  # Label Studio puts it before an uploaded file's name
# What JSON_MIN has besides the labels.
_NO_LABELS = {"id", "image", "annotator", "annotation_id", "created_at", "updated_at", "lead_time"}


def is_json(path: Path) -> bool:
    """Whether a file's name has the ending of JSON."""
    return path.suffix.lower() == ".json"


def read_label_studio(file: Path, label: str = "") -> Source:
    """The images of an export, which lie below its folder; an image is found by its name.

    label: the name of the choice that is the label, if there are several. Raises DataError.
    """
    file = file.absolute()
    tasks = read_json(file)
    if is_coco(tasks):
        raise DataError(f"{file} is a COCO file of boxes: --crop-boxes makes each an image")
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{file} is neither an export of Label Studio nor a COCO file")
    try:
        choices = [_choices(task) for task in tasks]
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise DataError(
            f"{file} is not an export of Label Studio: {type(error).__name__}: {error}"
        ) from error
    name = _label_name(file, choices, label)
    entries = _entries(file, tasks, choices, name)
    notes = [f"label {name}"]
    return list_entries(file, entries, "labelstudio", "Label Studio export", notes, unit="task")


def _choices(task: dict[str, Any]) -> dict[str, set[str]]:
    """The labels given to a task, by the names of the choices."""
    if "annotations" not in task:
        chosen = {name: _chosen(value) for name, value in task.items() if name not in _NO_LABELS}
        return {name: labels for name, labels in chosen.items() if labels}
    given: dict[str, set[str]] = {}
    for annotation in task["annotations"]:
        if annotation.get("was_cancelled"):
            continue
        for result in annotation["result"]:
            if result["type"] == "choices":
                labels = map(str, result["value"]["choices"])
                given.setdefault(str(result["from_name"]), set()).update(labels)
    return given


def _chosen(value: object) -> set[str]:
    """The labels in a cell of JSON_MIN: one as it is, several in an object."""
    if isinstance(value, dict):
        return set(map(str, value.get("choices", ())))
    return {value} if isinstance(value, str) else set()


def _label_name(file: Path, choices: list[dict[str, set[str]]], label: str) -> str:
    """The choice that is the label. Raises DataError if it is not there, or not the only one."""
    names = sorted({name for given in choices for name in given})
    if label in names:
        return label
    if not names:
        raise DataError(f"{file} has no choices: no image of it is labelled")
    if label or len(names) > 1:
        raise DataError(f"{file} has the choices {listed(names)}; name one with --label")
    return names[0]


def _entries(
    file: Path, tasks: list[dict[str, Any]], choices: list[dict[str, set[str]]], name: str
) -> Iterator[Entry]:
    """An entry for each label of a task; one without a label for a task without."""
    finder = ImageFinder(file.parent)
    for number, (task, given) in enumerate(zip(tasks, choices, strict=True), 1):
        path = _path(_address(task), finder)
        for label in sorted(given.get(name, {""})):
            yield Entry(number, path, label.strip(), UNSPLIT)


def _address(task: dict[str, Any]) -> str:
    """Where the image of a task is, as the export says."""
    data = task.get("data")
    values = [task["image"]] if "image" in task else data.values() if isinstance(data, dict) else ()
    return next((value for value in values if isinstance(value, str)), "")


def _path(address: str, finder: ImageFinder) -> str:
    """An image's path; the address itself if no file fits, which then is a problem."""
    try:
        parts = urlsplit(address)
    except ValueError:  # such as an address with half a bracket
        return address
    local = parse_qs(parts.query).get("d")  # /data/local-files/?d=folder/image.jpg
    path = local[0] if local else unquote(parts.path)
    name = path.rpartition("/")[2]
    for candidate in (path, path[: -len(name)] + _UPLOADED.sub("", name)):
        try:
            return finder.find(candidate)
        except ImageError:
            continue
    return address
