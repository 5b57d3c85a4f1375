"""DATA in memory: a pair of images and labels, or a map-style Dataset of torch."""

import hashlib
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image
from torch import Tensor

from onsight.data.cache import file_state_bytes
from onsight.data.index import Index, Problem, Row
from onsight.data.pixels import is_tensor, read_memory
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import Pixels, Source
from onsight.errors import DataError, ImageError
from onsight.files import disk_errors
from onsight.text import plural


class MapStyle(Protocol):
    """A Dataset with a length; each item is (image, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


InMemory = tuple[Any, Any] | MapStyle

_Content = bytes | Pixels
_Reader = Callable[[], _Content]
_EXPECTED = (
    "give a path, a pair (images, labels), or a torch Dataset whose items are (image, label)"
)
_RANDOM_NOTE = (
    "item 0 is a different image each time it is read, so its transform is random; each item is "
    "read once. Leave random transforms out: Onsight augments the images itself"
)


def read_memory_data(data: InMemory) -> Source:
    """Return the images of a pair (images, labels) or of a Dataset.

    images: an array (n, H, W) or (n, H, W, C), or a list of arrays, tensors, Pillow images or
    paths; labels: n of str or int. An item of a Dataset that raises an error becomes a problem.
    Raises DataError for unsuitable images or labels; DiskError.
    """
    collector = _Collector()
    if isinstance(data, tuple):
        for index, (image, label) in enumerate(_pair_items(data)):
            collector.add(f"item {index}", image, label, stays_in_memory=True)
        return collector.source("arrays")
    _check_map_style(data)
    for index in range(len(data)):
        _add_item(collector, data, index)
    if _is_random(data):
        collector.notes.append(_RANDOM_NOTE)
    return collector.source(type(data).__name__)


def check_images(images: Any) -> None:
    """Raise DataError for an argument whose type or shape cannot be several images."""
    if not _has_length(images):
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


def _has_length(values: Any) -> bool:
    """Return whether this is a collection of known length, and not a text."""
    return hasattr(values, "__len__") and not isinstance(values, (str, bytes))


def _pair_items(data: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
    """Return each image with its label. Raises DataError."""
    if len(data) != 2:
        raise DataError(f"a tuple of {len(data)} is not DATA: {_EXPECTED}")
    images, labels = data
    check_images(images)
    if not _has_length(labels):
        raise DataError(f"the labels are a {type(labels).__name__}: {_EXPECTED}")
    if len(images) != len(labels):
        count = plural(len(labels), "label")
        raise DataError(f"there are {plural(len(images), 'image')}, but {count}; each needs one")
    if len(images) == 0:
        raise DataError("there are no images: the images are empty")
    return zip(images, labels, strict=True)


def _check_map_style(data: Any) -> None:
    """Raise DataError for anything but a Dataset with a length."""
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        raise DataError("a DataLoader is not DATA: give its dataset, loader.dataset")
    is_array = isinstance(data, (np.ndarray, Tensor, bytes, dict))
    if is_array or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(f"a {type(data).__name__} is not DATA: {_EXPECTED}")


def _add_item(collector: "_Collector", data: MapStyle, index: int) -> None:
    name = f"item {index}"
    try:
        item = data[index]
    except Exception as error:  # the user's code can raise anything for a broken image
        collector.problems.append(Problem(name, "scan", f"{type(error).__name__}: {error}"))
        return
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise DataError(f"{name} of the {type(data).__name__} is not a pair (image, label)")
    image, label = item
    collector.add(name, image, label, stays_in_memory=False)


def _is_random(data: MapStyle) -> bool:
    """Return whether the image of item 0, unless it is a path, differs between two reads."""
    try:
        first, second = (_to_bytes(read_memory(data[0][0])) for _ in range(2))
    except Exception:  # a path, or already listed as a problem
        return False
    return first != second


class _Collector:
    """Collects images and labels, each read once, and the unusable items."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._spool = _Spool()
        self._rows: list[Row] = []
        self._readers: list[_Reader] = []
        self._digest = hashlib.sha256()
        self._label_type: type | None = None
        self._dtype = ""

    def add(self, name: str, image: object, label: object, stays_in_memory: bool) -> None:
        """Add an image; a path replaces the given name.

        stays_in_memory: whether the caller keeps an array unchanged for the whole run, so that it
        need not be copied. Raises DataError if image or label has an unsupported type.
        """
        label = self._check_label(name, label)
        added: tuple[bytes, _Reader] | None
        if isinstance(image, (str, os.PathLike)):
            name = str(os.fspath(image))
            added = _file_facts(name), partial(read_regular_file, name)
        else:
            added = self._read(name, image, stays_in_memory)
        if added is None:
            return
        facts, reader = added
        self._digest.update(hashlib.sha256(facts).digest() + repr(label).encode())
        self._rows.append(Row(name, str(label)))
        self._readers.append(reader)

    def source(self, kind: str) -> Source:
        """Return the source. kind: the type of DATA. Raises DataError if nothing is usable."""
        if not self._rows:
            examples = (f", such as {path}: {reason}" for path, _, reason in self.problems)
            raise DataError(
                f"there are no usable images in the {kind} in memory{next(examples, '')}"
            )
        index = Index.of(self._rows, int if self._label_type is int else None)
        count = len(index) + len(self.problems)
        classes = plural(len(index.classes), "class", "classes")
        return Source(
            kind=kind,
            root=Path(f"{kind} in memory ({count:,})"),
            index=index,
            read=lambda row: self._readers[row](),
            fingerprint=self._digest.hexdigest(),
            description=f"{kind} in memory, {classes}, {plural(count, 'image')}",
            problems=self.problems,
            notes=self.notes,
        )

    def _read(
        self, name: str, image: object, stays_in_memory: bool
    ) -> tuple[bytes, _Reader] | None:
        """Return an image's bytes and reader; for a broken image None, and a problem."""
        if isinstance(image, np.ndarray) or is_tensor(image):
            self._check_dtype(name, str(image.dtype).removeprefix("torch."))
        try:
            content = read_memory(image)
        except ImageError as error:
            if not isinstance(image, Image.Image):
                raise DataError(f"{name}: {error}") from error
            self.problems.append(Problem(name, "scan", str(error)))
            return None
        if stays_in_memory and not isinstance(image, Image.Image):
            return _to_bytes(content), partial(read_memory, image)
        return _to_bytes(content), self._spool.add(content)

    def _check_dtype(self, name: str, dtype: str) -> None:
        """Raise DataError for an array of another dtype than the arrays before it."""
        self._dtype = self._dtype or dtype
        if dtype != self._dtype:
            raise DataError(f"{name} is {dtype}, but those before it are {self._dtype}")

    def _check_label(self, name: str, label: object) -> str | int:
        """Return a label as str, int or bool. Raises DataError."""
        if (isinstance(label, (np.generic, np.ndarray)) or is_tensor(label)) and label.ndim == 0:
            label = label.item()
        if not isinstance(label, (str, int)):
            raise DataError(f"the label of {name} must be a str or an int, not {_describe(label)}")
        self._label_type = self._label_type or type(label)
        if type(label) is not self._label_type:
            raise DataError(
                f"the label of {name} is {label!r}, of type {type(label).__name__}, but those "
                f"before it are of type {self._label_type.__name__}"
            )
        return label


def _to_bytes(content: _Content) -> bytes:
    """Return an image's content, and shape if it is pixels, as bytes for a digest."""
    if isinstance(content, bytes):
        return content
    return repr(content.shape).encode() + content.tobytes()


def _file_facts(path: str) -> bytes:
    try:
        return file_state_bytes(path, os.stat(path))
    except OSError:  # decoding will report the reason
        return os.fsencode(path)


def _describe(label: object) -> str:
    if isinstance(label, np.ndarray) or is_tensor(label):
        return f"an array {tuple(label.shape)}; turn one-hot rows into labels with argmax(axis=1)"
    if label is None or label != label:
        return f"{label}; leave unlabelled images out"
    return f"{label!r}, a {type(label).__name__}"


class _Spool:
    """An unnamed temporary file of images whose origin can be read only once.

    The file is written completely and then read, possibly by several threads.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir())
        self._file = tempfile.TemporaryFile(prefix="onsight-")  # noqa: SIM115  # closed below
        weakref.finalize(self, self._file.close)
        self._end = 0

    def add(self, content: _Content) -> _Reader:
        """Append an image and return its reader. Raises DiskError."""
        data = content if isinstance(content, bytes) else content.tobytes()
        shape = None if isinstance(content, bytes) else content.shape
        with disk_errors(self._folder, len(data)):
            self._file.write(data)
            self._file.flush()
        start, self._end = self._end, self._end + len(data)
        return partial(self._read, start, len(data), shape)

    def _read(self, start: int, size: int, shape: tuple[int, ...] | None) -> _Content:
        """Return encoded bytes, or pixels of a shape (H, W, C)."""
        data = os.pread(self._file.fileno(), size, start)
        return data if shape is None else np.frombuffer(data, np.uint8).reshape(shape)
