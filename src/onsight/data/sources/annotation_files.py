"""Helpers for readers of annotations: their forms, values, and finding images."""

import math
import os
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from onsight.data.index import SPLIT_WORDS, UNSPLIT
from onsight.data.sources.folder import is_hidden
from onsight.errors import DataError, ImageError
from onsight.untrusted import read_xml


def is_json(path: Path) -> bool:
    """Return whether a file's name has a JSON ending."""
    return path.suffix.lower() == ".json"


def is_xml(path: Path) -> bool:
    """Return whether a file's name has an XML ending."""
    return path.suffix.lower() == ".xml"


def is_coco(content: Any) -> bool:
    """Return whether JSON has the form of a COCO file of boxes."""
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()


def is_cvat(document: Element) -> bool:
    """Return whether XML has the form of a CVAT file."""
    return document.tag == "annotations"


def read_cvat_images(file: Path) -> list[Element]:
    """Return the image elements of "CVAT for images". Raises DataError for anything else.

    Source: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/
    """
    document = read_xml(file)
    images = document.findall("image")
    if not is_cvat(document) or not images:
        raise DataError(
            f"{file} is not CVAT's XML for images. A Pascal VOC annotation has boxes: give its "
            "folder and --crop-boxes"
        )
    return images


def read_cvat_split(image: Element) -> int:
    """Return the split named by the subset of a CVAT image element, else UNSPLIT."""
    return SPLIT_WORDS.get(image.get("subset", "").lower(), UNSPLIT)


def read_child(element: Element, name: str) -> str:
    """Return the text of the first child with a name. Raises ValueError if there is none."""
    text = element.findtext(name)
    if text is None:
        raise ValueError(f"<{element.tag}> has no <{name}>")
    return text


def read_attribute(element: Element, name: str) -> str:
    """Return an attribute's text. Raises ValueError if there is none."""
    text = element.get(name)
    if text is None:
        raise ValueError(f"<{element.tag}> has no {name}")
    return text


def parse_coordinate(value: str | float) -> float:
    """Return a finite number. Raises ValueError."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{value} is not a coordinate")
    return number


class ImageFinder:
    """Finds the files that annotations name: tools write the paths of another machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths: dict[str, list[str]] = defaultdict(list)
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            for name in names:
                self._paths[name].append(os.path.relpath(os.path.join(folder, name), root))

    def find(self, name: str, near: str = "") -> str:
        """Return the path, relative to the root, of the file that fits a name best.

        Among several files of that name, the best fit has the most matching folders; among equal
        fits, the file in the folder `near` wins. Raises ImageError if there is no file, or no
        single best file.
        """
        wanted = name.replace("\\", "/").split("/")
        paths = self._paths.get(wanted[-1], [])
        if not paths:
            raise ImageError(f"annotated, but there is no such file below {self.root}")
        best = max(_count_common_end(path, wanted) for path in paths)
        paths = [path for path in paths if _count_common_end(path, wanted) == best]
        beside = [path for path in paths if os.path.dirname(path) == near]
        candidates = beside or paths
        if len(candidates) > 1:
            raise ImageError(f"annotated, but several files fit: {candidates[0]}, {candidates[1]}")
        return candidates[0]


def _count_common_end(path: str, wanted: list[str]) -> int:
    """Return the number of last parts of a path that equal the wanted parts."""
    pairs = zip(reversed(path.split(os.sep)), reversed(wanted), strict=False)
    same = [part == other for part, other in pairs]
    return same.index(False) if False in same else len(same)
