"""Images decoded from their source for every batch, in threads, ahead of the step.

B batch, H height, W width, C channels; pixels are uint8 (H, W, C).
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.augmentation_ops import AREA, CROP_X, CROP_Y, RATIO, crop_windows
from onsight.data.decode import decode, prepare_image
from onsight.data.decoding_memory import MEMORY
from onsight.data.fit import ImageFormat, background_colour, resize, to_channels
from onsight.data.loader import Batch
from onsight.data.pixels import Pixels
from onsight.data.shards.order import ShardPrefetcher
from onsight.data.sources.source import Source
from onsight.errors import DataError, ImageError
from onsight.limits import PADDED_PIXELS
from onsight.randomness import uniform

_AHEAD = 2  # batches being decoded while another is trained on
_CHUNK = 8  # images per task: large enough to hide the pool's overhead, small to share evenly


class CropWindow(NamedTuple):
    """A part of an image: shares of its height and width, and a centre from -1 to 1."""

    height: float
    width: float
    centre_y: float
    centre_x: float


@dataclass(frozen=True)
class StreamedImages:
    """The images of a source, decoded a batch at a time."""

    source: Source
    rows: NDArray[np.int64]  # (n,) the row of image i in the source
    labels: Tensor  # int64 (n,)
    format: ImageFormat
    crop_area: float = 1.0  # smallest area of random-resized crops, as a fraction; 1 is off
    threads: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every image."""
        return self.format.height, self.format.width, self.format.channels

    @property
    def device(self) -> torch.device:
        """The CPU, where images are decoded."""
        return torch.device("cpu")

    @property
    def nbytes(self) -> int:
        """Bytes that all images would occupy."""
        return len(self.rows) * int(np.prod(self.shape))

    def gather(self, ids: Tensor) -> Batch:
        """Return the batch of some whole images. ids: int64 (B,)."""
        return next(self.batches([ids], None))

    def labels_of(self, ids: Tensor) -> Tensor:
        """Return the labels of some images. ids: int64 (B,)."""
        return self.labels[ids]

    def shards_of(self, ids: Tensor) -> NDArray[np.int32] | None:
        """Return each image's file and part of the file, (B, 2), if the source has shards."""
        shards = self.source.shards
        if shards is None:
            return None
        part = shards.part_of_row[self.rows[ids.cpu().numpy()]]
        return np.stack([shards.file_of_part[part], part], axis=1)

    def batches(
        self, batch_ids: Iterable[Tensor], epoch_key: tuple[int, int] | None, pinned: bool = False
    ) -> Iterator[Batch]:
        """Yield a batch for each tensor of ids, decoding a few batches ahead.

        Args:
            batch_ids: Image ids, int64 (B,), of each batch.
            epoch_key: (seed, epoch) for drawing training crops, None for whole images.
            pinned: Decode into page-locked memory.

        Raises:
            DataError: For an image that can no longer be decoded.
        """
        started: deque[tuple[Batch, list[Future[None]]]] = deque()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="stream")
        try:
            for ids in self._announce(batch_ids):
                started.append(self._start(pool, ids, epoch_key, pinned))
                if len(started) > _AHEAD:
                    yield _finish(*started.popleft())
            while started:
                yield _finish(*started.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _announce(self, batch_ids: Iterable[Tensor]) -> Iterator[Tensor]:
        """Yield the same batches, after announcing to the source which shards they need."""
        shards = self.source.shards
        if shards is None:
            yield from batch_ids
            return
        known = list(batch_ids)
        if not known:
            return
        rows = self.rows[torch.cat(known).cpu().numpy()]
        ahead, done = ShardPrefetcher(shards.part_of_row[rows], shards.prefetch), 0
        for ids in known:
            done += len(ids)
            ahead.reach(done)
            yield ids

    def _start(
        self,
        pool: ThreadPoolExecutor,
        ids: Tensor,
        epoch_key: tuple[int, int] | None,
        pinned: bool,
    ) -> tuple[Batch, list[Future[None]]]:
        """Return a batch whose images are being decoded, and the tasks that decode them."""
        images = torch.empty((len(ids), *self.shape), dtype=torch.uint8, pin_memory=pinned)
        places, rows = images.numpy(), self.rows[ids.numpy()].tolist()
        windows = self._draw_windows(ids, epoch_key)
        tasks = []
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            tasks.append(pool.submit(self._decode_into, places[part], rows[part], windows[part]))
        labels = self.labels_of(ids)
        return Batch(images, labels, ids, labels), tasks

    def _draw_windows(
        self, ids: Tensor, epoch_key: tuple[int, int] | None
    ) -> list[CropWindow | None]:
        """Draw the part that is shown of each image, None for all of it. ids: int64 (B,)."""
        if epoch_key is None or self.crop_area == 1:
            return [None] * len(ids)
        columns = [AREA, RATIO, CROP_Y, CROP_X]
        drawn = uniform(*epoch_key, ids, columns).unbind(1)
        sides = crop_windows(self.crop_area, dict(zip(columns, drawn, strict=True)))
        return [CropWindow(*window) for window in torch.stack(sides, dim=1).tolist()]

    def _decode_into(
        self, places: Pixels, rows: list[int], windows: list[CropWindow | None]
    ) -> None:
        """Decode images into their places in a batch. places: uint8 (len(rows), H, W, C)."""
        for place, row, window in zip(places, rows, windows, strict=True):
            place[:] = self._image(row, window)

    def _image(self, row: int, window: CropWindow | None) -> Pixels:
        """Return an image of the source, or a window of it. Raises DataError."""
        try:
            content = self.source.read(row)
            if window:
                return crop_image(content, window, self.format)
            return prepare_image(content, self.format)[1]
        except ImageError as error:
            raise DataError(
                f"{self.source.index.locators[row]}: {error}; it could be read when the run "
                "began. Restore it, or start a new run"
            ) from error


def _finish(batch: Batch, tasks: list[Future[None]]) -> Batch:
    """Wait until the images of a batch are decoded. Raises DataError."""
    for task in tasks:
        task.result()
    return batch


@MEMORY.held()
def crop_image(content: bytes | Pixels, window: CropWindow, target: ImageFormat) -> Pixels:
    """Return a window of an image at the target's size and channels. Raises ImageError.

    The window is a part of the area that target.fit shows of the image (stretched, cropped or
    padded); its edges are rounded to pixels no larger than the result's.
    """
    if isinstance(content, bytes):
        min_size = _min_size(window, target)
        grey = target.channels == 1
        content = decode(
            content, target.background, target.pixel_limit, min_size, tight=True, grey=grey
        )
    pixels = to_channels(content, target.channels)
    if target.fit == "pad":
        pixels = _pad(pixels, target)
    height, width = pixels.shape[:2]
    shown_height, shown_width = float(height), float(width)
    if target.fit == "crop":  # the centre, in the target's aspect ratio
        shown_height = min(height, width * target.height / target.width)
        shown_width = shown_height * target.width / target.height
    rows = _span(height, shown_height, window.centre_y, window.height)
    columns = _span(width, shown_width, window.centre_x, window.width)
    return resize(pixels[rows, columns], target.height, target.width)


def _min_size(window: CropWindow, target: ImageFormat) -> tuple[int, int]:
    """Return the least (height, width) of a whole image whose window has the target's pixels."""
    height, width = 1 / window.height, 1 / window.width
    if target.fit != "stretch":  # both sides shrink by the same factor
        height = width = max(height, width)
    return math.ceil(target.height * height), math.ceil(target.width * width)


def _pad(pixels: Pixels, target: ImageFormat) -> Pixels:
    """Return the image in the smallest frame around it with the target's aspect ratio."""
    height, width = pixels.shape[:2]
    frame_height = max(height, round(width * target.height / target.width))
    frame_width = max(width, round(height * target.width / target.height))
    scale = math.sqrt(PADDED_PIXELS / (frame_height * frame_width))
    if scale < 1:  # a strip of an image needs a frame of many times its pixels
        smaller = max(1, round(scale * height)), max(1, round(scale * width))
        return _pad(resize(pixels, *smaller), target)
    frame = np.empty((frame_height, frame_width, target.channels), np.uint8)
    frame[:] = background_colour(target)
    top, left = (frame_height - height) // 2, (frame_width - width) // 2
    frame[top : top + height, left : left + width] = pixels
    return frame


def _span(side: int, shown: float, centre: float, share: float) -> slice:
    """Return the whole pixels, at least one, in a share of the shown middle of a side."""
    start = (side - shown) / 2 + shown * ((centre + 1) - share) / 2
    first = min(max(round(start), 0), side - 1)
    return slice(first, min(max(round(start + shown * share), first + 1), side))
