"""Each annotated box as an image of its own."""

import math
import os
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.data.file_state import stat_facts
from onsight.data.index import UNSPLIT, Index, Problem, Row
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import Source, fingerprint, found_line
from onsight.errors import DataError, ImageError
from onsight.words import plural

Pixels = NDArray[np.uint8]

_IMAGES_KEPT = 4  # decoded, as the boxes of an image follow each other


class Box(NamedTuple):
    """A labelled part of an image: edges in pixels from its upper left corner.

    path: relative to DATA; size: (height, width) of the image when the box was drawn, if known.
    """

    path: str
    label: str
    left: float
    top: float
    right: float
    bottom: float
    split: int = UNSPLIT
    size: tuple[int, int] | None = None


class Boxes(NamedTuple):
    """The boxes of some annotation files, and what of them cannot be used."""

    kind: str
    files: Sequence[Path]
    boxes: Sequence[Box]
    problems: list[Problem]


def box_source(root: Path, found: Boxes) -> Source:
    """An image for each box; boxes of one image are a group. Raises DataError for none."""
    found = _labelled(found)
    if not found.boxes:
        reasons = (f" ({one.path}: {one.reason})" for one in found.problems)
        raise DataError(f"{root} has no box that can be used{next(reasons, '')}")
    boxes = sorted(found.boxes, key=lambda box: box.path)  # so that an image is decoded once
    paths = sorted({box.path for box in boxes})
    index = Index.of(list(_rows(boxes)))
    facts = [stat_facts(path) for path in (*found.files, *(root / path for path in paths))]
    return Source(
        kind=found.kind,
        root=root,
        index=index,
        read=_CropReader(str(root), boxes),
        fingerprint=fingerprint(["boxes", found.kind, *facts]),
        found=found_line(
            f"boxes of {found.kind} annotations in {plural(len(paths), 'image')}",
            index,
            plural(len(boxes), "box", "boxes"),
        ),
        problems=found.problems,
        groups=[box.path for box in boxes],
    )


def _labelled(found: Boxes) -> Boxes:
    """The same, where boxes without a label are problems."""
    unlabelled = [box.path for box in found.boxes if not box.label]
    problems = [Problem(path, "scan", "a box without a label") for path in unlabelled]
    boxes = [box for box in found.boxes if box.label]
    return found._replace(boxes=boxes, problems=[*found.problems, *problems])


def _rows(boxes: Iterable[Box]) -> Iterable[Row]:
    """The rows of boxes, numbered within each image from 1."""
    path, number = "", 0
    for box in boxes:
        number = number + 1 if box.path == path else 1
        path = box.path
        yield Row(f"{path}#{number}", box.label, box.split)


class _CropReader:
    """Reads box i out of its image; keeps the images that were decoded last."""

    def __init__(self, folder: str, boxes: Sequence[Box]) -> None:
        self._folder = folder
        self._boxes = boxes
        self._decode = lru_cache(maxsize=_IMAGES_KEPT)(self._decode_file)

    def __call__(self, row: int) -> Pixels:
        """The pixels uint8 (H, W, C) inside a box. Raises ImageError."""
        return crop(self._decode(self._boxes[row].path), self._boxes[row])

    def _decode_file(self, path: str) -> Pixels:
        from onsight.data.decode import decode  # loads Pillow; finding a source does without

        return decode(read_regular_file(os.path.join(self._folder, path)))


def crop(pixels: Pixels, box: Box) -> Pixels:
    """The part of an image (H, W, C) inside a box, all pixels that it touches.

    Raises ImageError if the image's size is not the one it was annotated with, or the box is
    outside of it.
    """
    height, width = pixels.shape[:2]
    if box.size and box.size != (height, width):
        raise ImageError(
            f"the image is {width}x{height}, but its boxes were drawn on "
            f"{box.size[1]}x{box.size[0]}"
        )
    top, bottom = max(0, math.floor(box.top)), min(height, math.ceil(box.bottom))
    left, right = max(0, math.floor(box.left)), min(width, math.ceil(box.right))
    if top >= bottom or left >= right:
        raise ImageError("the box is empty, or outside of the image")
    return np.ascontiguousarray(pixels[top:bottom, left:right])
