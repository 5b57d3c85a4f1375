"""--crop-boxes: which annotations DATA has, and their boxes."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from onsight.data.sources.annotations.annotation_file import read_json, read_xml
from onsight.data.sources.annotations.boxes import Boxes, box_source
from onsight.data.sources.annotations.coco import is_coco, read_coco
from onsight.data.sources.annotations.cvat import is_cvat, is_xml, read_cvat_boxes
from onsight.data.sources.annotations.label_studio import is_json
from onsight.data.sources.annotations.pascal import read_pascal
from onsight.data.sources.source import Source
from onsight.errors import DataError

_INSTANCES = "instances_"  # COCO's own files: beside these lie others of the same images


def read_boxes(path: Path) -> Source:
    """The boxes of a COCO, Pascal VOC or CVAT file, or of all those below a folder.

    Raises DataError if there are no such annotations.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        return box_source(path, _of_folder(path))
    content = read_json(path) if is_json(path) else None
    if is_coco(content):
        return box_source(path.parent, read_coco(path.parent, {path: content}))
    if is_xml(path) and is_cvat(read_xml(path)):
        return box_source(path.parent, read_cvat_boxes(path))
    raise DataError(f"{path} is neither a folder nor a COCO or CVAT file, as --crop-boxes needs")


def _of_folder(folder: Path) -> Boxes:
    files = sorted(path for path in folder.rglob("*.*") if path.is_file())
    coco = _coco_files([path for path in files if is_json(path)])
    if coco:
        return read_coco(folder, coco)
    documents = [path for path in files if is_xml(path)]
    if len(documents) == 1 and is_cvat(read_xml(documents[0])):
        return read_cvat_boxes(documents[0])
    if documents:
        return read_pascal(folder, documents)
    raise DataError(
        f"{folder} has no annotations with boxes: neither a JSON file of COCO's form nor XML files "
        "of Pascal VOC's or CVAT's"
    )


def _coco_files(files: Sequence[Path]) -> dict[Path, Any]:
    """The files of COCO's form with their content; any other JSON is not ours to judge."""
    files = [path for path in files if path.name.startswith(_INSTANCES)] or files
    found = {}
    for path in files:
        with suppress(DataError):
            content = read_json(path)
            if is_coco(content):
                found[path] = content
    return found
