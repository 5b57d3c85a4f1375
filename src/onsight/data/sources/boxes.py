"""--crop-boxes: each annotated box of COCO, Pascal VOC or CVAT as a separate image.

Sources: https://cocodataset.org/#format-data,
http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/devkit_doc.html,
https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from onsight.data.cache import file_state
from onsight.data.index import SPLIT_WORDS, UNSPLIT, Index, Problem, Row
from onsight.data.sources.annotation_files import (
    ImageFinder,
    is_coco,
    is_cvat,
    is_json,
    is_xml,
    parse_coordinate,
    read_attribute,
    read_child,
    read_cvat_images,
    read_cvat_split,
)
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import (
    Pixels,
    Source,
    compute_fingerprint,
    describe,
    find_split_word,
)
from onsight.errors import DataError, ImageError
from onsight.text import plural
from onsight.untrusted import read_json, read_text, read_xml

_CACHED_IMAGES = 4  # number of decoded images; boxes of one image follow each other
_INSTANCES = "instances_"  # prefix of COCO's files of boxes; its other annotations lie beside them
_PASCAL_LISTS = Path("ImageSets") / "Main"
_CVAT_EDGES = ("xtl", "ytl", "xbr", "ybr")


class Box(NamedTuple):
    """A labelled part of an image, with its edges in pixels from the upper left corner."""

    path: str  # image path, relative to DATA
    label: str
    left: float
    top: float
    right: float
    bottom: float
    split: int = UNSPLIT
    size: tuple[int, int] | None = None  # (height, width) of the annotated image, if known


_Annotated = tuple[str, list[Box]]  # an image's name in the annotations, and its boxes


class Boxes(NamedTuple):
    """The boxes of some annotation files, and their unusable entries; readers add to both."""

    kind: str
    finder: ImageFinder  # of the images, whose paths are relative to its root
    files: Sequence[Path]
    boxes: list[Box]
    problems: list[Problem]


def read_boxes(path: Path, background: tuple[int, int, int], pixel_limit: int) -> Source:
    """Return the boxes of a COCO or CVAT file, or of the annotation files below a folder.

    Boxes of one image form a group. background, pixel_limit: how to decode the images, which have
    no boxes in encoded form. Raises DataError if there are no such annotations, or no usable box.
    """
    path = Path(os.path.realpath(path))
    found = _read_folder(path) if path.is_dir() else _read_file(path)
    kind, root = found.kind, found.finder.root
    usable = [box for box in found.boxes if box.label]
    problems = found.problems + [
        Problem(box.path, "scan", "a box without a label") for box in found.boxes if not box.label
    ]
    if not usable:
        reasons = (f" ({path}: {reason})" for path, _, reason in problems)
        raise DataError(f"{root} has no box that can be used{next(reasons, '')}")
    usable.sort(key=lambda box: box.path)  # to decode each image once
    paths = sorted({box.path for box in usable})
    index = Index.of(list(_list_rows(usable)))
    facts = [file_state(path) for path in (*found.files, *(root / path for path in paths))]

    @lru_cache(maxsize=_CACHED_IMAGES)
    def decode_image(path: str) -> Pixels:
        from onsight.data.decode import decode  # loads Pillow; finding a source does without

        return decode(read_regular_file(os.path.join(root, path)), background, pixel_limit)

    return Source(
        kind=kind,
        root=root,
        index=index,
        read=lambda row: crop(decode_image(usable[row].path), usable[row]),
        fingerprint=compute_fingerprint(["boxes", kind, background, pixel_limit, *facts]),
        description=describe(
            f"boxes of {kind} annotations in {plural(len(paths), 'image')}",
            index,
            plural(len(usable), "box", "boxes"),
        ),
        problems=problems,
        groups=[box.path for box in usable],
    )


def crop(pixels: Pixels, box: Box) -> Pixels:
    """Return the part of an image (H, W, C) inside a box, with every pixel the box touches.

    Raises ImageError if the image's size differs from the annotated size, or the box is
    empty or outside the image.
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
        raise ImageError("the box is empty or outside the image")
    return np.ascontiguousarray(pixels[top:bottom, left:right])


def read_coco(root: Path, files: Mapping[Path, Any]) -> Boxes:
    """Return the boxes of COCO files below a folder, each given with its content.

    The split is a word of a file's path. Raises DataError for a malformed file.
    """
    found = Boxes("COCO", ImageFinder(root), list(files), [], [])
    for file, content in files.items():
        try:
            _read_coco_file(content, os.path.relpath(file, root), found)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
            raise DataError(f"{file} is not a COCO file of boxes: {kind}{error}") from error
    return found


def read_pascal(root: Path, files: Sequence[Path]) -> Boxes:
    """Return the boxes of Pascal VOC files below a folder, one file for each image.

    The split comes from the lists in ImageSets/Main, or is a word of a file's path. Raises
    DataError for a malformed file.
    """
    found = Boxes("Pascal VOC", ImageFinder(root), files, [], [])
    splits = _read_pascal_splits(root)
    folders: dict[str, list[_Annotated]] = defaultdict(list)
    for file in files:
        relative = os.path.relpath(file, root)
        document = read_xml(file)
        try:
            name = read_child(document, "filename").strip()
            split = splits.get(Path(name).stem, find_split_word(relative))
            objects = document.findall("object")
            image_boxes = [_parse_pascal_box(item, document, name, split) for item in objects]
        except ValueError as error:
            raise DataError(f"{file} is not a Pascal VOC annotation: {error}") from error
        folders[os.path.dirname(relative)].append((name, image_boxes))
    for folder, images in folders.items():
        _find_images(images, folder, found)
    return found


def read_cvat_boxes(file: Path) -> Boxes:
    """Return the boxes of CVAT's XML. Raises DataError if it is something else."""
    found = Boxes("CVAT", ImageFinder(file.parent), [file], [], [])
    images: list[_Annotated] = []
    for image in read_cvat_images(file):
        name = image.get("name", "")
        try:
            elements = image.findall("box")
            images.append((name, [_parse_cvat_box(box, image, name) for box in elements]))
        except ValueError as error:
            raise DataError(f"{file}, image {name}: {error}") from error
    _find_images(images, "", found)
    return found


def _find_images(images: Sequence[_Annotated], near: str, found: Boxes) -> None:
    """Add the boxes of the images that are found, and problems for the others."""
    files = found.finder.find([name for name, _ in images], near)
    for (name, image_boxes), (path, fault) in zip(images, files, strict=True):
        if fault:
            found.problems.append(Problem(name, "scan", fault))
        else:
            found.boxes.extend(box._replace(path=path) for box in image_boxes)


def _read_file(path: Path) -> Boxes:
    content = read_json(path) if is_json(path) else None
    if is_coco(content):
        return read_coco(path.parent, {path: content})
    if is_xml(path) and is_cvat(read_xml(path)):
        return read_cvat_boxes(path)
    raise DataError(f"{path} is neither a folder nor a COCO or CVAT file, as --crop-boxes needs")


def _read_folder(folder: Path) -> Boxes:
    problems: list[Problem] = []

    def list_unread(error: OSError) -> None:
        path, reason = os.path.relpath(error.filename, folder), f"cannot be read: {error.strerror}"
        problems.append(Problem(path, "scan", reason))

    walk = os.walk(folder, onerror=list_unread)
    paths = (Path(parent, name) for parent, _, names in walk for name in names)
    found = _read_annotations(folder, sorted(path for path in paths if path.is_file()))
    found.problems.extend(problems)
    return found


def _read_annotations(folder: Path, files: Sequence[Path]) -> Boxes:
    coco = _read_coco_contents([path for path in files if is_json(path)])
    if coco:
        return read_coco(folder, coco)
    documents = [path for path in files if is_xml(path)]
    if len(documents) == 1 and is_cvat(read_xml(documents[0])):
        return read_cvat_boxes(documents[0])
    if documents:
        return read_pascal(folder, documents)
    raise DataError(
        f"{folder} has no annotations with boxes: neither a COCO JSON file nor XML files of "
        "Pascal VOC or CVAT"
    )


def _read_coco_contents(files: Sequence[Path]) -> dict[Path, Any]:
    """Return the files in COCO's form with their content, ignoring any other JSON."""
    files = [path for path in files if path.name.startswith(_INSTANCES)] or files
    contents = {}
    for path in files:
        with suppress(DataError):
            content = read_json(path)
            if is_coco(content):
                contents[path] = content
    return contents


def _read_coco_file(content: Any, relative: str, found: Boxes) -> None:
    """Add the boxes of a file, given by its path relative to the finder's root."""
    categories, images = _by_id(content, "categories"), _by_id(content, "images")
    annotated = {key: (str(image["file_name"]), list[Box]()) for key, image in images.items()}
    split = find_split_word(relative)
    for item in content["annotations"]:
        for key, known in (("image_id", images), ("category_id", categories)):
            if item[key] not in known:
                raise ValueError(f"annotation {item.get('id')} has the unknown {key} {item[key]}")
        name, image_boxes = annotated[item["image_id"]]
        if item.get("iscrowd"):
            found.problems.append(Problem(name, "scan", f"box {item['id']}: marks a crowd"))
            continue
        left, top, width, height = (parse_coordinate(edge) for edge in item["bbox"])
        label = str(categories[item["category_id"]]["name"]).strip()
        edges = left, top, parse_coordinate(left + width), parse_coordinate(top + height)
        image = images[item["image_id"]]
        has_size = "height" in image and "width" in image  # some tools omit it
        size = (int(image["height"]), int(image["width"])) if has_size else None
        image_boxes.append(Box(name, label, *edges, split, size))
    _find_images([*annotated.values()], os.path.dirname(relative), found)


def _by_id(content: Any, kind: str) -> dict[Any, Any]:
    """Return items of a COCO file by their id. Raises ValueError for an id with two meanings."""
    items: dict[Any, Any] = {}
    for item in content[kind]:
        if items.setdefault(item["id"], item) != item:
            raise ValueError(f"several {kind} have the id {item['id']}; give each its own")
    return items


def _read_pascal_splits(root: Path) -> dict[str, int]:
    """Return the split of each listed image by its name without the ending."""
    splits: dict[str, int] = {}
    for word in ("train", "val", "test"):
        for file in root.glob(f"**/{_PASCAL_LISTS / word}.txt"):
            words = (line.split() for line in read_text(file, "replace").splitlines())
            splits |= {line[0]: SPLIT_WORDS[word] for line in words if line}
    return splits


def _parse_pascal_box(item: Element, document: Element, path: str, split: int) -> Box:
    edges = item.find("bndbox")
    if edges is None:
        raise ValueError("an object has no bndbox")
    left, top, right, bottom = (
        parse_coordinate(read_child(edges, name)) for name in ("xmin", "ymin", "xmax", "ymax")
    )
    element = document.find("size")
    size = None
    if element is not None:
        height, width = (
            parse_coordinate(read_child(element, name)) for name in ("height", "width")
        )
        size = (int(height), int(width))
    label = read_child(item, "name").strip()
    # Pascal counts pixels from 1, and the last row and column belong to the box.
    return Box(path, label, left - 1, top - 1, right, bottom, split, size)


def _parse_cvat_box(box: Element, image: Element, path: str) -> Box:
    size = (int(read_attribute(image, "height")), int(read_attribute(image, "width")))
    left, top, right, bottom = (parse_coordinate(read_attribute(box, edge)) for edge in _CVAT_EDGES)
    label = read_attribute(box, "label").strip()
    return Box(path, label, left, top, right, bottom, read_cvat_split(image), size)


def _list_rows(boxes: Iterable[Box]) -> Iterable[Row]:
    """Yield the rows of boxes, numbered within each image from 1."""
    numbers: Counter[str] = Counter()
    for box in boxes:
        numbers[box.path] += 1
        yield Row(f"{box.path}#{numbers[box.path]}", box.label, box.split)
