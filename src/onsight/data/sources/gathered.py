"""Images and labels gathered from memory one by one, each read once."""

import hashlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from onsight.data.file_state import identity
from onsight.data.index import Index, Problem, Row
from onsight.data.pixels import is_tensor, read_memory
from onsight.data.sources.read_file import read_regular_file
from onsight.data.sources.source import Pixels, Source
from onsight.data.sources.spool import Spool
from onsight.errors import DataError, ImageError
from onsight.words import plural

Content = bytes | Pixels
_Reader = Callable[[], Content]


class Gathered:
    """The images gathered so far, their labels, and what cannot be used."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._spool = Spool()
        self._rows: list[Row] = []
        self._readers: list[_Reader] = []
        self._digest = hashlib.sha256()
        self._label_type: type | None = None
        self._dtype = ""

    def add(self, name: str, image: object, label: object, is_kept: bool) -> None:
        """Take one image. is_kept: whether the caller keeps an array as it is for the whole run.

        A file's name replaces the given one. Raises DataError for what is no image or label.
        """
        label = self._checked_label(name, label)
        found: tuple[bytes, _Reader] | None
        if isinstance(image, (str, os.PathLike)):
            name = str(os.fspath(image))
            found = _file_facts(name), partial(read_regular_file, name)
        else:
            found = self._read(name, image, is_kept)
        if found is None:
            return
        facts, reader = found
        self._digest.update(hashlib.sha256(facts).digest() + repr(label).encode())
        self._rows.append(Row(name, str(label)))
        self._readers.append(reader)

    def source(self, kind: str) -> Source:
        """Everything gathered. kind: what it was gathered from. Raises DataError for nothing."""
        if not self._rows:
            reasons = "".join(f", such as {one.path}: {one.reason}" for one in self.problems[:1])
            raise DataError(f"the {kind} in memory hold no usable images{reasons}")
        index = Index.of(self._rows, int if self._label_type is int else None)
        count = len(index) + len(self.problems)
        classes = plural(len(index.classes), "class", "classes")
        return Source(
            kind=kind,
            root=Path(f"{kind} in memory ({count:,})"),
            index=index,
            read=lambda row: self._readers[row](),
            fingerprint=self._digest.hexdigest(),
            found=f"{kind} in memory, {classes}, {plural(count, 'image')}",
            problems=self.problems,
            notes=self.notes,
        )

    def _read(self, name: str, image: object, is_kept: bool) -> tuple[bytes, _Reader] | None:
        """An image's facts and reader, or None and a problem for an image that is broken."""
        if isinstance(image, np.ndarray) or is_tensor(image):
            self._check_dtype(name, str(image.dtype).removeprefix("torch."))
        try:
            content = read_memory(image)
        except ImageError as error:
            if not isinstance(image, Image.Image):
                raise DataError(f"{name}: {error}") from error
            self.problems.append(Problem(name, "scan", str(error)))
            return None
        if is_kept and not isinstance(image, Image.Image):
            return content_facts(content), partial(read_memory, image)
        return content_facts(content), partial(self._spool.read, self._spool.add(content))

    def _check_dtype(self, name: str, dtype: str) -> None:
        """Raise DataError for an array of another dtype than those before it."""
        self._dtype = self._dtype or dtype
        if dtype != self._dtype:
            raise DataError(f"{name} is {dtype}, but those before it are {self._dtype}")

    def _checked_label(self, name: str, label: object) -> str | int:
        """A label as str, int or bool. Raises DataError."""
        if (isinstance(label, (np.generic, np.ndarray)) or is_tensor(label)) and label.ndim == 0:
            label = label.item()
        if not isinstance(label, (str, int)):
            raise DataError(f"the label of {name} must be a str or an int, not {_described(label)}")
        self._label_type = self._label_type or type(label)
        if type(label) is not self._label_type:
            raise DataError(
                f"the label of {name} is {label!r}, of type {type(label).__name__}, but those "
                f"before it are of type {self._label_type.__name__}"
            )
        return label


def content_facts(content: Content) -> bytes:
    """What changes when an image does."""
    if isinstance(content, bytes):
        return content
    return repr(content.shape).encode() + content.tobytes()


def _file_facts(path: str) -> bytes:
    try:
        return identity(path, os.stat(path))
    except OSError:  # decoding gives the reason
        return os.fsencode(path)


def _described(label: object) -> str:
    if isinstance(label, np.ndarray) or is_tensor(label):
        return f"an array {tuple(label.shape)}; turn one-hot rows into labels with argmax(axis=1)"
    if label is None or label != label:
        return f"{label}; leave unlabelled images out"
    return f"{label!r}, a {type(label).__name__}"
