"""Boxes of COCO annotations. Source: https://cocodataset.org/#format-data"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onsight.data.index import Problem
from onsight.data.sources.annotations.boxes import Box, Boxes
from onsight.data.sources.annotations.image_finder import ImageFinder
from onsight.data.sources.annotations.values import number
from onsight.data.sources.split_of_name import split_of_name
from onsight.errors import DataError, ImageError


def read_coco(root: Path, files: Mapping[Path, Any]) -> Boxes:
    """The boxes of COCO files below a folder, each given with its content.

    The split is a word of a file's path. Raises DataError for a file that is not of this form.
    """
    finder, boxes, problems = ImageFinder(root), list[Box](), list[Problem]()
    for file, content in files.items():
        where = os.path.relpath(file, root)
        try:
            _read_file(content, where, finder, boxes, problems)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{file} is not a COCO file of boxes: {type(error).__name__}: {error}"
            ) from error
    return Boxes("COCO", list(files), boxes, problems)


def is_coco(content: Any) -> bool:
    """Whether JSON has the form of a COCO file of boxes."""
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()


def _read_file(
    content: Any, where: str, finder: ImageFinder, boxes: list[Box], problems: list[Problem]
) -> None:
    """Add the boxes of a file at a path relative to the finder's root."""
    names = {one["id"]: str(one["name"]).strip() for one in content["categories"]}
    images = {one["id"]: one for one in content["images"]}
    paths: dict[Any, str] = {}
    for key, one in images.items():
        try:
            paths[key] = finder.find(str(one["file_name"]), os.path.dirname(where))
        except ImageError as error:
            problems.append(Problem(str(one["file_name"]), "scan", str(error)))
    split = split_of_name(where)
    for one in content["annotations"]:
        image = images[one["image_id"]]
        if one["image_id"] not in paths:
            continue  # its image is a problem already
        if one.get("iscrowd"):
            path = paths[one["image_id"]]
            problems.append(Problem(path, "scan", f"box {one['id']}: around a crowd"))
            continue
        left, top, width, height = (number(edge) for edge in one["bbox"])
        boxes.append(
            Box(
                paths[one["image_id"]],
                names[one["category_id"]],
                left,
                top,
                left + width,
                top + height,
                split,
                _size(image),
            )
        )


def _size(image: Any) -> tuple[int, int] | None:
    """(height, width) of an annotated image, which some tools leave out."""
    if "height" not in image or "width" not in image:
        return None
    return int(image["height"]), int(image["width"])
