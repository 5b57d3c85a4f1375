"""CVAT's own XML, "CVAT for images": tags of images, or boxes in them.

Source: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/
"""

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from onsight.data.index import SPLIT_WORDS, UNSPLIT, Problem
from onsight.data.sources.annotations.annotation_file import read_xml
from onsight.data.sources.annotations.boxes import Box, Boxes
from onsight.data.sources.annotations.image_finder import ImageFinder
from onsight.data.sources.annotations.values import attribute, number
from onsight.data.sources.manifest import list_entries
from onsight.data.sources.manifest_entries import Entry
from onsight.data.sources.source import Source
from onsight.errors import DataError, ImageError

_EDGES = ("xtl", "ytl", "xbr", "ybr")


def is_xml(path: Path) -> bool:
    """Whether a file's name has the ending of XML."""
    return path.suffix.lower() == ".xml"


def is_cvat(document: Element) -> bool:
    """Whether XML has the form of CVAT's."""
    return document.tag == "annotations"


def read_cvat(file: Path) -> Source:
    """The tagged images of CVAT's XML. Raises DataError if it is something else."""
    file = file.absolute()
    return list_entries(file, _tags(file, _images(file)), "cvat", "CVAT tags", unit="image")


def read_cvat_boxes(file: Path) -> Boxes:
    """The boxes of CVAT's XML. Raises DataError if it is something else."""
    finder, boxes, problems = ImageFinder(file.parent), list[Box](), list[Problem]()
    for image in _images(file):
        name = image.get("name", "")
        try:
            path = finder.find(name)
            boxes += [_box(one, image, path) for one in image.findall("box")]
        except ImageError as error:
            problems.append(Problem(name, "scan", str(error)))
        except ValueError as error:
            raise DataError(f"{file}, image {name}: {error}") from error
    return Boxes("CVAT", [file], boxes, problems)


def _images(file: Path) -> list[Element]:
    document = read_xml(file)
    images = document.findall("image")
    if not is_cvat(document) or not images:
        raise DataError(
            f"{file} is not CVAT's XML for images. A Pascal VOC annotation has boxes: give its "
            "folder and --crop-boxes"
        )
    return images


def _tags(file: Path, images: list[Element]) -> Iterator[Entry]:
    """An entry for each tag; one without a label for an image without."""
    finder = ImageFinder(file.parent)
    if not any(image.find("tag") is not None for image in images):
        raise DataError(f"{file} has no tags, but boxes: --crop-boxes makes each an image")
    for line, image in enumerate(images, 1):
        name = image.get("name", "")
        try:
            path = finder.find(name)
        except ImageError:
            path = name  # listing it tells that there is no such file
        for tag in image.findall("tag") or [Element("tag", label="")]:
            yield Entry(line, path, tag.get("label", "").strip(), _split(image))


def _split(image: Element) -> int:
    return SPLIT_WORDS.get(image.get("subset", "").lower(), UNSPLIT)


def _box(box: Element, image: Element, path: str) -> Box:
    size = (int(attribute(image, "height")), int(attribute(image, "width")))
    left, top, right, bottom = (number(attribute(box, edge)) for edge in _EDGES)
    label = attribute(box, "label").strip()
    return Box(path, label, left, top, right, bottom, _split(image), size)
