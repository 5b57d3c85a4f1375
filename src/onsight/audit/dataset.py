"""The dataset that is checked: decoded once, as for training, with the headers of its files."""

import io
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from onsight.audit.finding import AuditItem
from onsight.config import Config
from onsight.data.index import SPLIT_NAMES, UNSPLIT, Problem
from onsight.data.pack import Pack, open_pack
from onsight.data.packing import PackJob, Progress
from onsight.data.pixels import FORMATS, Pixels
from onsight.data.sizes import USUAL_SIZE, choose_size, make_format
from onsight.data.sources.source import Source
from onsight.errors import ImageError
from onsight.report.console import Reporter
from onsight_explain.threads import usable_cores

_SIZE = (128, 128)  # pixels that larger images are reduced to


class ImageHeader(NamedTuple):
    """The format, mode and size of an image, read from its file without decoding it."""

    format: str  # Pillow's name of the format, or "pixels" for an array
    mode: str
    height: int  # as stored, in pixels
    width: int


@dataclass(frozen=True)
class CheckedDataset:
    """All usable images, decoded, and the problems with the other files."""

    source: Source
    pack: Pack
    headers: Mapping[int, ImageHeader]  # headers by row of the source

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number."""
        return self.pack.index.classes

    @property
    def problems(self) -> list[Problem]:
        """The files that cannot be used."""
        return [*self.source.problems, *self.pack.problems]

    def class_counts(self) -> dict[str, int]:
        """Return the number of images of each class."""
        counts = np.bincount(self.pack.index.labels, minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counts, strict=True))

    def item(self, index: int) -> AuditItem:
        """Return an image by its index in the pack."""
        images = self.pack.index
        return AuditItem(
            images.locators[index],
            images.classes[images.labels[index]],
            "" if images.splits[index] == UNSPLIT else SPLIT_NAMES[images.splits[index]],
            index,
        )

    def header(self, index: int) -> ImageHeader | None:
        """Return the header of an image's file, if it could be read."""
        return self.headers.get(int(self.pack.sources[index]))


def open_dataset(
    source: Source, config: Config, cache: Path | None, reporter: Reporter
) -> CheckedDataset:
    """Decode all images, or reopen them from the cache, and read the headers of their files.

    Raises DataError if none can be used, DiskError.
    """
    size = choose_size(source, config.size, None).value
    if size == USUAL_SIZE and not config.size:
        size = _SIZE
    headers: dict[int, ImageHeader] = {}

    def read(row: int) -> bytes | Pixels:
        """Read an image and record its header. Raises ImageError."""
        content = source.read(row)
        header = _read_header(content)
        if header:
            headers[row] = header
        return content

    recorded = replace(source, read=read)
    job = PackJob(recorded, make_format(config, size, size), threads=usable_cores())
    with reporter.bar("decode", len(source.index)) as bar:
        pack = open_pack(replace(job, progress=bar.advance), cache)
        if pack.was_cached:
            _read_again(read, pack, bar.advance)
    return CheckedDataset(source, pack, headers)


def _read_header(content: bytes | Pixels) -> ImageHeader | None:
    if not isinstance(content, bytes):
        mode = "L" if content.shape[2] == 1 else "RGB"
        return ImageHeader("pixels", mode, content.shape[0], content.shape[1])
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            return ImageHeader(str(image.format), image.mode, image.height, image.width)
    except Exception:  # damaged in any way; decoding reports the reason
        return None


def _read_again(read: Callable[[int], object], pack: Pack, progress: Progress) -> None:
    """Read all files again, because a cached pack was opened without reading them."""

    def try_to_read(row: int) -> None:
        with suppress(ImageError):
            read(row)

    with ThreadPoolExecutor(usable_cores()) as pool:
        for _ in pool.map(try_to_read, pack.sources.tolist()):
            progress(1)
