"""Batches by (seed, epoch, step), gathered from the pack without a Python loop over images.

n images, B batch, H height, W width, C channels.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.pack import Pack
from onsight.data.shards.order import draw_shard_order
from onsight.randomness import permutation
from onsight_explain.devices import has_streams, module_of

_CHUNK_BYTES = 128 << 20  # largest size of a chunk, as uint8 and float32 together
_CHUNK_IMAGES = 8192  # most images per chunk
_BYTES_PER_VALUE = 1 + 4


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive batches on an accelerator, gathered and augmented at once.

    Fewer, larger launches keep an accelerator busy.
    """

    images: Tensor  # uint8 (N, H, W, C)
    labels: Tensor  # int64 (N,)
    ids: Tensor  # int64 (N,)


class ChunkSlice(NamedTuple):
    """A batch's place in its chunk."""

    chunk: Chunk
    start: int


class Batch(NamedTuple):
    """Images that are computed at once."""

    images: Tensor  # uint8 (B, H, W, C)
    labels: Tensor  # int64 (B,)
    ids: Tensor  # int64 (B,) image numbers
    global_labels: Tensor  # labels of the whole batch; these images may be one rank's share
    part: ChunkSlice | None = None  # position in a chunk, if batches were gathered together


class BatchSource(Protocol):
    """A source of batches: images already decoded, or decoded on demand."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every image."""

    @property
    def device(self) -> torch.device:
        """The device that batches are on."""

    def batches(
        self, batch_ids: Iterable[Tensor], epoch_key: tuple[int, int] | None, pinned: bool = False
    ) -> Iterator[Batch]:
        """Yield a batch for each int64 (B,) of image numbers.

        epoch_key: (seed, epoch) in training, else None; pinned: put the images in page-locked
        memory, from which an accelerator copies by itself.
        """

    def labels_of(self, ids: Tensor) -> Tensor:
        """Return the labels of some images. ids: int64 (B,)."""

    def shards_of(self, ids: Tensor) -> NDArray[np.int32] | None:
        """Return each image's file and part of the file, (B, 2), or None if any order will do."""


@dataclass(frozen=True)
class Images:
    """All usable images, decoded into one tensor that batches are gathered from."""

    pixels: Tensor  # uint8 (n, H * W * C)
    rows: Tensor  # int64 (n,) the row of image i in pixels
    labels: Tensor  # int64 (n,)
    shape: tuple[int, int, int]  # (H, W, C)

    @classmethod
    def of(cls, pack: Pack) -> "Images":
        """Return the pack's memory map as tensors, without a copy."""
        return cls(
            torch.from_numpy(pack.pixels).view(len(pack.pixels), -1),
            torch.from_numpy(pack.rows),
            torch.from_numpy(pack.index.labels).long(),
            (pack.format.height, pack.format.width, pack.format.channels),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all pixels."""
        return self.pixels.numel()

    @property
    def device(self) -> torch.device:
        """The device that the images are on."""
        return self.pixels.device

    def to(self, device: torch.device) -> "Images":
        """Return these images, resident on a device."""
        return Images(
            self.pixels.to(device), self.rows.to(device), self.labels.to(device), self.shape
        )

    def copied(self) -> "Images":
        """Return a copy of the images in RAM."""
        return Images(self.pixels.clone(), self.rows, self.labels, self.shape)

    def batches(
        self, batch_ids: Iterable[Tensor], epoch_key: tuple[int, int] | None, pinned: bool = False
    ) -> Iterator[Batch]:
        """Yield the batch of each tensor of image numbers; epoch_key changes nothing."""
        if self.device.type == "cpu":  # a batch fits into its caches
            for ids in batch_ids:
                yield self.gather(ids, pinned)
            return
        for group in group_batches(batch_ids, images_per_chunk(math.prod(self.shape))):
            yield from self._gather_chunk(group)

    def _gather_chunk(self, group: list[Tensor]) -> Iterator[Batch]:
        whole = self.gather(torch.cat(group))
        chunk = Chunk(whole.images, whole.labels, whole.ids)
        start = 0
        for ids in group:
            images, labels, numbers = (column[start : start + len(ids)] for column in whole[:3])
            yield Batch(images, labels, numbers, labels, ChunkSlice(chunk, start))
            start += len(ids)

    def gather(self, ids: Tensor, pinned: bool = False) -> Batch:
        """Return the batch of some images. ids: int64 (B,); pinned: in page-locked memory."""
        ids = _to_device(ids, self.pixels.device)
        # torch keeps a few pinned buffers, and reuses one when its copy has ended.
        size = len(ids), self.pixels.shape[1]
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else None
        rows = self.rows.index_select(0, ids)
        images = torch.index_select(self.pixels, 0, rows, out=buffer)
        labels = self.labels.index_select(0, ids)
        return Batch(images.view(-1, *self.shape), labels, ids, labels)

    def labels_of(self, ids: Tensor) -> Tensor:
        """Return the labels of some images. ids: int64 (B,)."""
        return self.labels.index_select(0, _to_device(ids, self.labels.device))

    def shards_of(self, ids: Tensor) -> None:
        """Return None: images in memory are read in any order."""


@dataclass(frozen=True)
class Loader:
    """Batches of some images on a device.

    Each of several ranks gets its share of every training batch and, in order, every ranks-th
    batch.
    """

    images: BatchSource
    ids: Tensor  # int64 (n,) image numbers, on the CPU
    batch_size: int
    device: torch.device
    rank: int = 0
    ranks: int = 1
    # For mixing, each share ends with the image that follows it in the batch; the first image
    # follows the last.
    with_next: bool = False

    @cached_property
    def steps(self) -> int:
        """Batches per epoch; too few last images for batch norm join the batch before.

        Batch norm needs two images. On accelerators it also needs one for each rank, because its
        statistics there would count the blank image of an empty share.
        """
        full, rest = divmod(len(self.ids), self.batch_size)
        fewest = 2 if self.device.type == "cpu" else max(2, self.ranks)
        return max(1, full) if rest < fewest else full + 1

    def epoch(self, seed: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the shuffled batches of an epoch, starting at a step."""
        on = self.images.device
        order = self.ids[self._order(seed, epoch)].to(on)
        # A resumed epoch uses the chunks of a whole epoch: some kernels round by chunk size.
        begin = first_step if on.type == "cpu" else 0
        global_batches = [self._global_batch(order, step) for step in range(begin, self.steps)]
        batches = self._deliver(self._rank_batches(global_batches, (seed, epoch)))
        return _skip(first_step - begin, batches)

    def in_order(self) -> Iterator[Batch]:
        """Yield every image once, in order; with several ranks, each image on one of them."""
        ids = self.ids.to(self.images.device)
        batch_ids = torch.split(ids, self.batch_size) if len(ids) else ()
        batch_ids = batch_ids[self.rank :: self.ranks]
        return self._deliver(self.images.batches(batch_ids, None, self._is_sent_ahead))

    def _order(self, seed: int, epoch: int) -> Tensor:
        """Return the places in `ids` of an epoch's images: shuffled, by shards if there are any."""
        shards = self.images.shards_of(self.ids)
        if shards is None:
            return permutation(seed, epoch, len(self.ids))
        sizes = np.full(self.steps, self.batch_size)
        sizes[-1] = len(self.ids) - sizes[:-1].sum()
        return torch.from_numpy(draw_shard_order(shards, seed, epoch, sizes, self.ranks))

    def _global_batch(self, order: Tensor, step: int) -> Tensor:
        start = step * self.batch_size
        return order[start:] if step == self.steps - 1 else order[start : start + self.batch_size]

    def _rank_batches(
        self, global_batches: list[Tensor], epoch_key: tuple[int, int]
    ) -> Iterator[Batch]:
        """Yield this rank's share of each global batch of image numbers."""
        if self.ranks == 1 and not self.with_next:
            yield from self.images.batches(global_batches, epoch_key, self._is_sent_ahead)
            return
        shares = map(self._share, global_batches)
        batches = self.images.batches(shares, epoch_key, self._is_sent_ahead)
        for batch, ids in zip(batches, global_batches, strict=True):
            whole = batch.labels[:-1] if self.ranks == 1 else self.images.labels_of(ids)
            yield batch._replace(global_labels=whole)

    def _share(self, ids: Tensor) -> Tensor:
        mine = ids.tensor_split(self.ranks)[self.rank]
        if self.with_next and len(mine):
            after = sum(len(part) for part in ids.tensor_split(self.ranks)[: self.rank + 1])
            mine = torch.cat([mine, ids[after % len(ids)].view(1)])
        return mine

    @property
    def _is_sent_ahead(self) -> bool:
        return has_streams(self.device) and self.images.device != self.device

    def _deliver(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Move the batches to the device that computes."""
        if self.images.device == self.device:
            yield from batches
            return
        tensors = (batch[:4] for batch in batches)
        sent = (
            prefetch(tensors, self.device)
            if self._is_sent_ahead
            else (tuple(_to_device(tensor, self.device) for tensor in batch) for batch in tensors)
        )
        for images, labels, ids, global_labels in sent:
            yield Batch(images, labels, ids, global_labels)


def find_positions(ids: Tensor, some: Tensor) -> Tensor:
    """Return where some of different image numbers are among them. ids: int64 (n,), any order."""
    order = torch.argsort(ids)
    return order[torch.searchsorted(ids, some, sorter=order)]


def images_per_chunk(values: int) -> int:
    """Return the number of images per chunk. values: number of values per image."""
    return max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // (_BYTES_PER_VALUE * values)))


def group_batches(batch_ids: Iterable[Tensor], max_images: int) -> Iterator[list[Tensor]]:
    """Group consecutive batches up to a number of images, with at least one batch in each group."""
    group: list[Tensor] = []
    count = 0
    for ids in batch_ids:
        if group and count + len(ids) > max_images:
            yield group
            group, count = [], 0
        group.append(ids)
        count += len(ids)
    if group:
        yield group


def prefetch(
    batches: Iterable[tuple[Tensor, ...]], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches in order on an accelerator; each is sent while its predecessor computes."""
    backend = module_of(device)
    stream = backend.Stream(device)
    in_flight = None
    for batch in batches:
        with backend.stream(stream):
            sent = tuple(_send(tensor, device) for tensor in batch)
            arrived = stream.record_event()
        if in_flight:
            yield _receive(*in_flight, backend.current_stream(device))
        in_flight = sent, arrived
    if in_flight:
        yield _receive(*in_flight, backend.current_stream(device))


def _send(tensor: Tensor, device: torch.device) -> Tensor:
    """Begin a copy to the device; it blocks the host unless the memory is page-locked."""
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    return pinned.to(device, non_blocking=True)


def _receive(sent: tuple[Tensor, ...], arrived: Any, computing: Any) -> tuple[Tensor, ...]:
    """Make the computing stream wait for the copies, and keep their memory until it used them."""
    computing.wait_event(arrived)
    for tensor in sent:
        tensor.record_stream(computing)
    return sent


def _skip(count: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches after the first ones; closing this closes them."""
    for _ in range(count):
        next(batches)
    yield from batches


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, without waiting if torch keeps the source alive meanwhile.

    An Apple GPU reads the source itself, later, when a temporary one would be gone.
    """
    return tensor.to(device, non_blocking=has_streams(device))
