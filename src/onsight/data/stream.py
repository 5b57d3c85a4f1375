"""Images decoded from their source for every batch, in threads, ahead of the step."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.augmentations.geometry import AREA, CROP_X, CROP_Y, RATIO, crop_windows
from onsight.data.crop import Window, crop_image
from onsight.data.fit import ImageFormat
from onsight.data.loader import Batch
from onsight.data.packing import prepare_image
from onsight.data.pillow_pixels import Pixels
from onsight.data.shards.order import ShardPrefetcher
from onsight.data.sources.source import Source
from onsight.errors import DataError, ImageError
from onsight.randomness import uniform

_AHEAD = 2  # batches being decoded while another is trained on
_CHUNK = 8  # images per task: large enough to hide the pool's overhead, small to share evenly

_Windows = list[Window | None]  # one per image; None shows all of it


class _Begun(NamedTuple):
    """A batch whose images are being decoded, and the tasks that decode them."""

    batch: Batch
    tasks: list[Future[None]]


@dataclass(frozen=True)
class Stream:
    """The images of a source, decoded a batch at a time.

    rows: int64 (n,) the row of image i in the source; labels: int64 (n,); format: what every
    image becomes; crop_area: least area share of random-resized crops in training, 1 is off.
    """

    source: Source
    rows: NDArray[np.int64]
    labels: Tensor
    format: ImageFormat
    crop_area: float = 1.0
    threads: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every image."""
        return self.format.height, self.format.width, self.format.channels

    @property
    def device(self) -> torch.device:
        """Images are decoded on the CPU."""
        return torch.device("cpu")

    @property
    def nbytes(self) -> int:
        """Bytes that all images would occupy."""
        return len(self.rows) * int(np.prod(self.shape))

    def gather(self, ids: Tensor) -> Batch:
        """The batch of these images as evaluation sees them. ids: int64 (B,)."""
        return next(self.batches([ids], None))

    def labels_of(self, ids: Tensor) -> Tensor:
        """The labels of these images. ids: int64 (B,)."""
        return self.labels[ids]

    def shards_of(self, ids: Tensor) -> NDArray[np.int32] | None:
        """The file and the part of it that each image is in, if the source has these: (B, 2)."""
        shards = self.source.shards
        if shards is None:
            return None
        part = shards.part_of_row[self.rows[ids.cpu().numpy()]]
        return np.stack([shards.file_of_part[part], part], axis=1)

    def batches(
        self, shares: Iterable[Tensor], epoch_key: tuple[int, int] | None, locked: bool = False
    ) -> Iterator[Batch]:
        """The batch of each share of image numbers, a few decoded ahead.

        epoch_key: (seed, epoch) for drawing training crops; None gives whole images; locked:
        decoded into page-locked memory. Raises DataError for an image that can no longer be
        decoded.
        """
        under_way: deque[_Begun] = deque()
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="stream")
        try:
            for ids in self._announced(shares):
                under_way.append(self._begin(pool, ids, epoch_key, locked))
                if len(under_way) > _AHEAD:
                    yield _finished(under_way.popleft())
            while under_way:
                yield _finished(under_way.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _announced(self, shares: Iterable[Tensor]) -> Iterator[Tensor]:
        """The same shares; the source is told ahead which of its shards they need."""
        shards = self.source.shards
        if shards is None:
            yield from shares
            return
        known = list(shares)
        if not known:
            return
        rows = self.rows[torch.cat(known).cpu().numpy()]
        ahead, done = ShardPrefetcher(shards.part_of_row[rows], shards.prefetch), 0
        for ids in known:
            done += len(ids)
            ahead.reach(done)
            yield ids

    def _begin(
        self,
        pool: ThreadPoolExecutor,
        ids: Tensor,
        epoch_key: tuple[int, int] | None,
        locked: bool,
    ) -> _Begun:
        images = torch.empty((len(ids), *self.shape), dtype=torch.uint8, pin_memory=locked)
        places, rows = images.numpy(), self.rows[ids.numpy()].tolist()
        windows = self._windows(ids, epoch_key)
        tasks = []
        for start in range(0, len(rows), _CHUNK):
            part = slice(start, start + _CHUNK)
            tasks.append(pool.submit(self._decode, rows[part], windows[part], places[part]))
        labels = self.labels_of(ids)
        return _Begun(Batch(images, labels, ids, labels), tasks)

    def _windows(self, ids: Tensor, epoch_key: tuple[int, int] | None) -> _Windows:
        """The part that is shown of each image, None for all of it. ids: int64 (B,)."""
        if epoch_key is None or self.crop_area == 1:
            return [None] * len(ids)
        columns = [AREA, RATIO, CROP_Y, CROP_X]
        drawn = uniform(*epoch_key, ids, columns).unbind(1)
        sides = crop_windows(self.crop_area, dict(zip(columns, drawn, strict=True)))
        return [Window(*sides) for sides in torch.stack(sides, dim=1).tolist()]

    def _decode(self, rows: list[int], windows: _Windows, places: Pixels) -> None:
        """Decode images into their places in a batch. places: uint8 (len(rows), H, W, C)."""
        for row, window, place in zip(rows, windows, places, strict=True):
            place[:] = self._image(row, window)

    def _image(self, row: int, window: Window | None) -> Pixels:
        """An image of the source, or a window of it: uint8 (H, W, C). Raises DataError."""
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


def _finished(begun: _Begun) -> Batch:
    for task in begun.tasks:
        task.result()
    return begun.batch
