"""What the files of images say before they are decoded: format, mode and size."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from PIL import Image

from onsight.data.pillow_pixels import FORMATS, Pixels
from onsight.data.sources.source import Source


class Header(NamedTuple):
    """format and mode as Pillow names them; height, width: as stored, in pixels."""

    format: str
    mode: str
    height: int
    width: int


class HeaderReader:
    """Reads the images of a source, and keeps the header of each that it has read."""

    def __init__(self, read: Callable[[int], bytes | Pixels]) -> None:
        self._read = read
        self.headers: dict[int, Header] = {}

    def __call__(self, row: int) -> bytes | Pixels:
        """What the source gives. Raises ImageError."""
        content = self._read(row)
        header = _header(content)
        if header:
            self.headers[row] = header
        return content


def with_headers(source: Source) -> tuple[Source, HeaderReader]:
    """The same source, which keeps the headers of what is read."""
    reader = HeaderReader(source.read)
    return replace(source, read=reader), reader


def _header(content: bytes | Pixels) -> Header | None:
    if not isinstance(content, bytes):
        mode = "L" if content.shape[2] == 1 else "RGB"
        return Header("pixels", mode, content.shape[0], content.shape[1])
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return Header(str(image.format), image.mode, image.height, image.width)
    except Exception:  # any damage; decoding gives the reason
        return None
