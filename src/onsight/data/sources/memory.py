"""DATA in memory: a pair of images and labels, or a map-style Dataset of torch."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from onsight.data.index import Problem
from onsight.data.pixels import read_memory
from onsight.data.sources.gathered import Gathered, content_facts
from onsight.data.sources.source import Source
from onsight.errors import DataError
from onsight.words import plural


class MapStyle(Protocol):
    """A Dataset with a length; each item is (image, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Any: ...


InMemory = tuple[Any, Any] | MapStyle

_WANTED = "give a path, a pair (images, labels), or a torch Dataset whose items are (image, label)"
_RANDOM = (
    "item 0 is another image each time it is read, so its transform is random; each item is "
    "read once. Leave random transforms out: Onsight augments the images itself"
)


def memory_source(data: InMemory) -> Source:
    """The images of a pair (images, labels) or of a Dataset.

    images: an array (n, H, W) or (n, H, W, C), or a list of arrays, tensors, Pillow images or
    paths; labels: n of str or int. An item of a Dataset that raises an error becomes a problem.
    Raises DataError for what cannot be images or labels; DiskError.
    """
    gathered = Gathered()
    if isinstance(data, tuple):
        for number, (image, label) in enumerate(_pairs(data)):
            gathered.add(f"item {number}", image, label, is_kept=True)
        return gathered.source("arrays")
    _check_map_style(data)
    for number in range(len(data)):
        _add_item(gathered, data, number)
    if _is_random(data):
        gathered.notes.append(_RANDOM)
    return gathered.source(type(data).__name__)


def check_images(images: Any) -> None:
    """Raise DataError for what cannot be several images, judging by its type and shape."""
    if not _is_sized(images):
        raise DataError(f"a {type(images).__name__} is not several images: give a list or an array")
    shape = tuple(getattr(images, "shape", ()))
    if len(shape) == 2:
        raise DataError(
            f"images of shape {shape} are rows or a table, and their height and width are unknown; "
            "give an array (n, H, W) or (n, H, W, C), such as images.reshape(n, H, W), or one "
            "column of paths"
        )
    if len(shape) > 4:
        raise DataError(f"images of shape {shape} are not (n, H, W) or (n, H, W, C)")


def _is_sized(values: Any) -> bool:
    """Whether these are several values whose number is known, and not one text."""
    return hasattr(values, "__len__") and not isinstance(values, (str, bytes))


def _pairs(data: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Each image with its label. Raises DataError."""
    if len(data) != 2:
        raise DataError(f"a tuple of {len(data)} is not DATA: {_WANTED}")
    images, labels = data
    check_images(images)
    if not _is_sized(labels):
        raise DataError(f"the labels are a {type(labels).__name__}: {_WANTED}")
    if len(images) != len(labels):
        count = plural(len(labels), "label")
        raise DataError(f"there are {plural(len(images), 'image')}, but {count}; each needs one")
    if len(images) == 0:
        raise DataError("there are no images: the images are empty")
    return zip(images, labels, strict=True)


def _check_map_style(data: Any) -> None:
    """Raise DataError for anything but a Dataset with a length."""
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        raise DataError("a DataLoader is not DATA: give its data set, loader.dataset")
    is_array = isinstance(data, (np.ndarray, Tensor, bytes, dict))
    if is_array or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(f"a {type(data).__name__} is not DATA: {_WANTED}")


def _add_item(gathered: Gathered, data: MapStyle, number: int) -> None:
    name = f"item {number}"
    try:
        item = data[number]
    except Exception as error:  # whatever the user's code raises for a broken image
        gathered.problems.append(Problem(name, "scan", f"{type(error).__name__}: {error}"))
        return
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise DataError(f"{name} of the {type(data).__name__} is not a pair (image, label)")
    image, label = item
    gathered.add(name, image, label, is_kept=False)


def _is_random(data: MapStyle) -> bool:
    """Whether the image of item 0, unless it is a path, differs between two readings."""
    try:
        first, second = (content_facts(read_memory(data[0][0])) for _ in range(2))
    except Exception:  # a path, or listed as a problem already
        return False
    return first != second
