"""Boxes of Pascal VOC annotations, an XML file for each image.

Source: http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html
"""

import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from onsight.data.index import SPLIT_WORDS, UNSPLIT, Problem
from onsight.data.sources.annotations.annotation_file import read_xml
from onsight.data.sources.annotations.boxes import Box, Boxes
from onsight.data.sources.annotations.image_finder import ImageFinder
from onsight.data.sources.annotations.values import child, number
from onsight.data.sources.split_of_name import split_of_name
from onsight.errors import DataError, ImageError

_LISTS = Path("ImageSets") / "Main"


def read_pascal(root: Path, files: Sequence[Path]) -> Boxes:
    """The boxes of XML files below a folder; raises DataError for one that is not of this form.

    The split comes from the lists in ImageSets/Main, or is a word of a file's path.
    """
    finder, boxes, problems = ImageFinder(root), list[Box](), list[Problem]()
    listed = _listed_splits(root)
    for file in files:
        where = os.path.relpath(file, root)
        document = read_xml(file)
        try:
            name = child(document, "filename").strip()
            split = listed.get(Path(name).stem, split_of_name(where))
            path = finder.find(name, os.path.dirname(where))
            boxes += [_box(one, document, path, split) for one in document.findall("object")]
        except ImageError as error:
            problems.append(Problem(name, "scan", str(error)))
        except ValueError as error:
            raise DataError(f"{file} is not a Pascal VOC annotation: {error}") from error
    return Boxes("Pascal VOC", files, boxes, problems)


def _listed_splits(root: Path) -> dict[str, int]:
    """The split of each image by its name without the ending, as the lists say."""
    splits: dict[str, int] = {}
    for word in ("train", "val", "test"):
        for file in root.glob(f"**/{_LISTS / word}.txt"):
            words = (line.split() for line in file.read_text("utf-8", "replace").splitlines())
            splits |= {line[0]: SPLIT_WORDS[word] for line in words if line}
    return splits


def _box(item: Element, document: Element, path: str, split: int = UNSPLIT) -> Box:
    edges = item.find("bndbox")
    if edges is None:
        raise ValueError("an object has no bndbox")
    left, top, right, bottom = (
        number(child(edges, name)) for name in ("xmin", "ymin", "xmax", "ymax")
    )
    size = document.find("size")
    drawn_on = (
        None
        if size is None
        else (int(number(child(size, "height"))), int(number(child(size, "width"))))
    )
    label = child(item, "name").strip()
    # Pascal counts pixels from 1, and the last ones belong to the box.
    return Box(path, label, left - 1, top - 1, right, bottom, split, drawn_on)
