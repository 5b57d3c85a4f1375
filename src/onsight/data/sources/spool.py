"""Images set aside in an unnamed temporary file, because they can be had only once."""

import os
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onsight.data.sources.source import Pixels
from onsight.files import disk_errors


class Place(NamedTuple):
    """Where an image is in the file, in bytes; shape: (H, W, C) of pixels, None if encoded."""

    offset: int
    size: int
    shape: tuple[int, ...] | None


class Spool:
    """A file that is written first and then read, by several threads if need be."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir())
        self._file = tempfile.TemporaryFile(prefix="onsight-")  # noqa: SIM115  # closed below
        weakref.finalize(self, self._file.close)
        self._end = 0

    def add(self, content: bytes | Pixels) -> Place:
        """Append an image. Raises DiskError."""
        data = content if isinstance(content, bytes) else content.tobytes()
        with disk_errors(self._folder, len(data)):
            self._file.write(data)
            self._file.flush()
        place = Place(self._end, len(data), None if isinstance(content, bytes) else content.shape)
        self._end += len(data)
        return place

    def read(self, place: Place) -> bytes | Pixels:
        """The image at a place."""
        data = os.pread(self._file.fileno(), place.size, place.offset)
        if place.shape is None:
            return data
        return np.frombuffer(data, np.uint8).reshape(place.shape)
