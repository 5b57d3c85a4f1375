"""Helpers for readers of annotations: their forms, values, and finding images."""

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from onsight.data.index import SPLIT_WORDS, UNSPLIT
from onsight.data.sources.folder import is_hidden
from onsight.errors import DataError
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


class Found(NamedTuple):
    """An image's path, or its name in the annotations and why there is no such image."""

    path: str
    fault: str = ""


class _Move(NamedTuple):
    """Folders in a name, and those where the file is instead."""

    left: tuple[str, ...]
    entered: tuple[str, ...]


_IN_PLACE = _Move((), ())


class ImageFinder:
    """Finds the files that annotations name: tools write the paths of another machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._paths: dict[str, list[str]] = defaultdict(list)
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            for name in names:
                self._paths[name].append(os.path.relpath(os.path.join(folder, name), root))

    def has_name(self, name: str) -> bool:
        """Return whether any file has a name."""
        return name in self._paths

    def find(self, names: Sequence[str], near: str = "") -> list[Found]:
        """Return the file of each name in one list of annotations, relative to the root.

        A name is a path from the root or, as a bare file name, in the folder `near`. Files may
        have been moved, but all alike: a file of the same name elsewhere may be another image.
        """
        fits = [self._fit(name, near) for name in names]
        moves = {move for _, move in fits if move}
        fewest = min((len(move.left) for move in moves), default=0)
        moves = {move for move in moves if len(move.left) == fewest}
        if _IN_PLACE in moves:
            moves = {_IN_PLACE}
        elif len(moves) > 1 and any(len(_split_name(name)) > 1 for name in names):
            moves = set()
        fault = "annotated, but there is no such file; {} has its name, but may be another image: "
        fault += "name its folder as the annotations do"
        return [
            Found(name, fault.format(found.path)) if move and move not in moves else found
            for name, (found, move) in zip(names, fits, strict=True)
        ]

    def _fit(self, name: str, near: str) -> tuple[Found, _Move | None]:
        """Return the file that fits a name best, and how it was moved.

        Among several files of that name, the best fit has the most matching folders; among equal
        fits, the file in the folder `near` wins.
        """
        wanted = _split_name(name)
        places = [os.path.join(near, name), *([name] if len(wanted) > 1 else [])]
        for place in map(os.path.normpath, places):
            if os.path.isfile(self.root / place):
                return Found(place), _IN_PLACE
        paths = self._paths.get(wanted[-1], []) if wanted else []
        if not paths:
            return Found(name, f"annotated, but there is no such file below {self.root}"), None
        best = max(_count_common_end(path, wanted) for path in paths)
        paths = [path for path in paths if _count_common_end(path, wanted) == best]
        paths = [path for path in paths if os.path.dirname(path) == near] or paths
        if len(paths) > 1:
            return Found(name, f"annotated, but several files fit: {paths[0]}, {paths[1]}"), None
        parts = paths[0].split(os.sep)
        return Found(paths[0]), _Move(tuple(wanted[:-best]), tuple(parts[:-best]))


def _split_name(name: str) -> list[str]:
    return [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]


def _count_common_end(path: str, wanted: list[str]) -> int:
    """Return the number of last parts of a path that equal the wanted parts."""
    pairs = zip(reversed(path.split(os.sep)), reversed(wanted), strict=False)
    same = [part == other for part, other in pairs]
    return same.index(False) if False in same else len(same)
