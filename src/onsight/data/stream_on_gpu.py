"""Streamed batches whose plain JPEGs an NVIDIA GPU decodes (nvJPEG), for training only.

Its pixels differ from those of the CPU's decoder by a few grey levels, so whatever is judged keeps
to the latter, and so does every picture that nvJPEG cannot take.
"""

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.crop import Window, cut_out
from onsight.data.decode import plain_jpeg_header
from onsight.data.loader import Batch
from onsight.data.stream import Stream
from onsight.errors import DeviceError, PictureError
from onsight.hardware.memory import is_out_of_memory

_AHEAD = 2  # batches whose files are read while another is trained on
_WHOLE = Window(1.0, 1.0, 0.0, 0.0)

_Task = Future[Tensor]  # encoded bytes (n,), or pixels (H, W, C) that the CPU decoded


@dataclass(frozen=True)
class StreamOnGpu:
    """A stream to a GPU, which decodes the JPEGs of training batches. Not for the fit "pad"."""

    stream: Stream
    device: torch.device

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every picture."""
        return self.stream.shape

    @cached_property
    def _labels(self) -> Tensor:
        return self.stream.labels.to(self.device)

    def labels_of(self, ids: Tensor) -> Tensor:
        """The labels of these pictures. ids: int64 (B,) on the device."""
        return self._labels.index_select(0, ids)

    def shards_of(self, ids: Tensor) -> NDArray[np.int32] | None:
        """The file and the part of it that each picture is in, if the source has these: (B, 2)."""
        return self.stream.shards_of(ids)

    def batches(
        self, shares: Iterable[Tensor], epoch_key: tuple[int, int] | None, locked: bool = False
    ) -> Iterator[Batch]:
        """The batch of each share of picture numbers, on the device.

        epoch_key: (seed, epoch) in training; without it the CPU decodes, as `Stream` does. Raises
        DataError for a picture that can no longer be decoded, DeviceError.
        """
        given = list(shares)
        if not given:
            return
        # All numbers at once: the host waits for the device here.
        on_host = torch.cat(given).cpu().split([len(ids) for ids in given])
        made: Iterator[Tensor]
        if epoch_key is None:
            made = (batch.images.to(self.device) for batch in self.stream.batches(on_host, None))
        else:
            made = self._decoded(on_host, epoch_key)
        for ids, images in zip(given, made, strict=True):
            labels = self.labels_of(ids)
            yield Batch(images, labels, ids, labels)

    def _decoded(self, shares: Iterable[Tensor], epoch_key: tuple[int, int]) -> Iterator[Tensor]:
        under_way: deque[tuple[list[int], list[Window | None], list[_Task]]] = deque()
        pool = ThreadPoolExecutor(self.stream.threads, thread_name_prefix="stream")
        coming = self.stream.announced(shares)
        try:
            while True:
                for ids in islice(coming, 1 + _AHEAD - len(under_way)):
                    rows = self.stream.rows[ids.numpy()].tolist()
                    windows = self.stream.windows(ids, epoch_key)
                    tasks = [
                        pool.submit(self._read, *one) for one in zip(rows, windows, strict=True)
                    ]
                    under_way.append((rows, windows, tasks))
                if not under_way:
                    return
                yield self._images(*under_way.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _read(self, row: int, window: Window | None) -> Tensor:
        """The bytes of a plain JPEG (n,), or the pixels (H, W, C) of any other picture."""
        try:
            content = self.stream.source.read(row)
            limit = self.stream.format.pixel_limit
            if isinstance(content, bytes) and plain_jpeg_header(content, limit):
                return torch.frombuffer(bytearray(content), dtype=torch.uint8)
        except PictureError:
            pass  # which the stream explains
        return torch.tensor(self.stream.picture(row, window))

    def _images(self, rows: list[int], windows: list[Window | None], tasks: list[_Task]) -> Tensor:
        """uint8 (B, H, W, C) on the device."""
        read = [task.result() for task in tasks]
        decoded = iter(self._decode([one for one in read if one.ndim == 1]))
        images = torch.empty((len(rows), *self.shape), dtype=torch.uint8, device=self.device)
        for place, row, window, one in zip(images, rows, windows, read, strict=True):
            if one.ndim == 3:
                place.copy_(one)
            elif (planes := next(decoded)) is not None:
                place.copy_(self._shown(planes.permute(1, 2, 0), window or _WHOLE))
            else:  # damaged
                place.copy_(torch.tensor(self.stream.picture(row, window)))
        return images

    def _decode(self, encoded: list[Tensor]) -> list[Tensor | None]:
        """Each (C, H, W) on the device; None where nvJPEG cannot decode it. Raises DeviceError."""
        from torchvision.io import ImageReadMode, decode_jpeg

        if not encoded:
            return []
        mode = ImageReadMode.GRAY if self.stream.format.channels == 1 else ImageReadMode.RGB
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "The image decoding and encoding")
                return list(decode_jpeg(encoded, mode=mode, device=self.device))
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            if "not compiled" in str(error):
                raise DeviceError(f"{error}; leave out --decode-on gpu") from error
        if len(encoded) == 1:
            return [None]
        return [self._decode([one])[0] for one in encoded]  # it gives all or none

    def _shown(self, pixels: Tensor, window: Window) -> Tensor:
        """A window of a picture (H, W, C) at the size of the batch, bilinear as `resize`."""
        height, width, _ = self.shape
        planes = cut_out(pixels, window, self.stream.format).permute(2, 0, 1)[None].float()
        resized = F.interpolate(
            planes, (height, width), mode="bilinear", antialias=True, align_corners=False
        )
        return resized[0].round().clamp(0, 255).permute(1, 2, 0)
