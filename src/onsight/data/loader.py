"""Batches by (seed, epoch, step), gathered from the pack without a Python loop over images.

Image ids are row numbers of the dataset. n images, N images of a chunk, B batch, H height, W width,
C channels.
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

from onsight.data.pack import Pack, release_pages
from onsight.data.pixels import Pixels
from onsight.data.shards.order import draw_shard_order
from onsight.randomness import permutation
from onsight_explain.devices import has_streams, module_of

# Read from a mapped file before its pages are released: Linux maps five to ten times as much around
# images in random order (NOTEBOOK.md).
_MAX_MAPPED_BYTES = 16 << 20
_MAX_CHUNK_BYTES = 128 << 20  # as uint8 and float32 together
_MAX_CHUNK_IMAGES = 8192
_BYTES_PER_VALUE = 1 + 4


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive batches that are gathered and augmented together.

    Launching kernels takes the host longer than a small batch takes an accelerator.
    """

    images: Tensor  # uint8 (N, H, W, C)
    labels: Tensor  # int64 (N,)
    ids: Tensor  # int64 (N,)


class PlaceInChunk(NamedTuple):
    """Where a batch is in its chunk."""

    chunk: Chunk
    start: int


class Batch(NamedTuple):
    """The images of one step, or this rank's share of them."""

    images: Tensor  # uint8 (B, H, W, C)
    labels: Tensor  # int64 (B,)
    ids: Tensor  # int64 (B,)
    global_labels: Tensor  # of the whole batch, all ranks together
    place_in_chunk: PlaceInChunk | None = None  # if it was gathered as part of a chunk


class BatchSource(Protocol):
    """A source of batches: images that are already decoded, or decoded on demand."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every image."""

    @property
    def device(self) -> torch.device:
        """The device that batches are on."""

    def batches(
        self, batch_ids: Iterable[Tensor], epoch_key: tuple[int, int] | None, pinned: bool = False
    ) -> Iterator[Batch]:
        """Yield a batch for each tensor of ids.

        Args:
            batch_ids: Image ids, int64 (B,), of each batch.
            epoch_key: (seed, epoch) in training, else None.
            pinned: Put the images in page-locked memory, which an accelerator can copy from
                asynchronously.
        """

    def labels_of(self, ids: Tensor) -> Tensor:
        """Return the labels of the images with these ids (B,)."""

    def shards_of(self, ids: Tensor) -> NDArray[np.int32] | None:
        """Return each image's file and part of that file (B, 2), or None if any order will do."""


@dataclass(frozen=True)
class Images:
    """All usable images, decoded into one tensor that batches are gathered from."""

    pixels: Tensor  # uint8 (n, H * W * C)
    rows: Tensor  # int64 (n,) image i is row rows[i] of pixels
    labels: Tensor  # int64 (n,)
    shape: tuple[int, int, int]  # (H, W, C)
    mapped: Pixels | None = None  # the same pixels, if they are a mapped file

    @classmethod
    def of(cls, pack: Pack) -> "Images":
        """Return the pack's memory map as tensors, without a copy."""
        return cls(
            torch.from_numpy(pack.pixels).view(len(pack.pixels), -1),
            torch.from_numpy(pack.rows),
            torch.from_numpy(pack.index.labels).long(),
            (pack.format.height, pack.format.width, pack.format.channels),
            pack.pixels,
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
        """Return the images moved to a device."""
        return Images(
            self.pixels.to(device), self.rows.to(device), self.labels.to(device), self.shape
        )

    def copied(self) -> "Images":
        """Return the images copied into memory."""
        return Images(self.pixels.clone(), self.rows, self.labels, self.shape)

    def batches(
        self, batch_ids: Iterable[Tensor], epoch_key: tuple[int, int] | None, pinned: bool = False
    ) -> Iterator[Batch]:
        """Yield a batch for each tensor of ids, gathered in chunks on an accelerator."""
        if self.device.type == "cpu":  # a batch fits into its caches, a chunk does not
            unreleased_bytes = 0
            for ids in batch_ids:
                yield (batch := self.gather(ids, pinned))
                unreleased_bytes += batch.images.nbytes
                if unreleased_bytes > _MAX_MAPPED_BYTES:
                    release_pages(self.mapped)
                    unreleased_bytes = 0
            release_pages(self.mapped)
            return
        for group in group_batches(batch_ids, images_per_chunk(math.prod(self.shape))):
            yield from self._gather_chunk(group)

    def _gather_chunk(self, group: list[Tensor]) -> Iterator[Batch]:
        whole = self.gather(torch.cat(group))
        chunk = Chunk(whole.images, whole.labels, whole.ids)
        start = 0
        for ids in group:
            images, labels, image_ids = (column[start : start + len(ids)] for column in whole[:3])
            yield Batch(images, labels, image_ids, labels, PlaceInChunk(chunk, start))
            start += len(ids)

    def gather(self, ids: Tensor, pinned: bool = False) -> Batch:
        """Return the images with these ids (B,) as a batch, in page-locked memory if `pinned`."""
        ids = _to_device(ids, self.pixels.device)
        # torch caches pinned buffers, and reuses each once it has been copied.
        size = len(ids), self.pixels.shape[1]
        buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True) if pinned else None
        rows = self.rows.index_select(0, ids)
        images = torch.index_select(self.pixels, 0, rows, out=buffer)
        labels = self.labels.index_select(0, ids)
        return Batch(images.view(-1, *self.shape), labels, ids, labels)

    def labels_of(self, ids: Tensor) -> Tensor:
        """Return the labels of the images with these ids (B,)."""
        return self.labels.index_select(0, _to_device(ids, self.labels.device))

    def shards_of(self, ids: Tensor) -> None:
        """Return None: decoded images can be read in any order."""


@dataclass(frozen=True)
class Loader:
    """Batches of some images on a device.

    With several ranks, each gets its share of every training batch, and every n-th batch of those
    in order.

    Attributes:
        images: Where batches come from.
        ids: Image ids, int64 (n,), on the CPU.
        batch_size: Images per batch, all ranks together.
        device: The device that batches are moved to.
        rank: The number of this rank.
        ranks: The number of ranks.
        with_next: Whether to append the image that follows a share in its batch, to be mixed with
            the share's last image; the batch's first image follows its last.
    """

    images: BatchSource
    ids: Tensor
    batch_size: int
    device: torch.device
    rank: int = 0
    ranks: int = 1
    with_next: bool = False

    @cached_property
    def steps(self) -> int:
        """The number of batches per epoch.

        A last batch that is too small for batch norm is merged with the one before. Batch norm
        needs two images; on accelerators also one per rank, because the blank image of an empty
        share would count in its statistics.
        """
        full, rest = divmod(len(self.ids), self.batch_size)
        min_images = 2 if self.device.type == "cpu" else max(2, self.ranks)
        return max(1, full) if rest < min_images else full + 1

    def epoch(self, seed: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """Yield the shuffled batches of an epoch, starting at a step."""
        source_device = self.images.device
        order = self.ids[self._order(seed, epoch)].to(source_device)
        # A resumed epoch uses the same chunks as a whole one: some kernels round by chunk size.
        begin = first_step if source_device.type == "cpu" else 0
        global_batches = [self._global_batch(order, step) for step in range(begin, self.steps)]
        batches = self._deliver(self._rank_batches(global_batches, (seed, epoch)))
        return _skip(first_step - begin, batches)

    def in_order(self) -> Iterator[Batch]:
        """Yield every image once, in order; with several ranks, on one of them."""
        ids = self.ids.to(self.images.device)
        batch_ids = torch.split(ids, self.batch_size) if len(ids) else ()
        batch_ids = batch_ids[self.rank :: self.ranks]
        return self._deliver(self.images.batches(batch_ids, None, self._is_sent_ahead))

    def _order(self, seed: int, epoch: int) -> Tensor:
        """Return the shuffled indices into `ids` for an epoch, shard by shard if there are any."""
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
        """Yield this rank's share of each global batch of ids."""
        if self.ranks == 1 and not self.with_next:
            yield from self.images.batches(global_batches, epoch_key, self._is_sent_ahead)
            return
        shares = map(self._share, global_batches)
        batches = self.images.batches(shares, epoch_key, self._is_sent_ahead)
        for batch, ids in zip(batches, global_batches, strict=True):
            whole = batch.labels[:-1] if self.ranks == 1 else self.images.labels_of(ids)
            yield batch._replace(global_labels=whole)

    def _share(self, ids: Tensor) -> Tensor:
        shares = ids.tensor_split(self.ranks)
        share = shares[self.rank]
        if self.with_next and len(share):
            end = sum(map(len, shares[: self.rank + 1]))
            share = torch.cat([share, ids[end % len(ids)].view(1)])
        return share

    @property
    def _is_sent_ahead(self) -> bool:
        return has_streams(self.device) and self.images.device != self.device

    def _deliver(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Move the batches to `device`."""
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


def find_positions(ids: Tensor, wanted: Tensor) -> Tensor:
    """Return the positions of the wanted ids in `ids` (n,), which are unique, in any order."""
    order = torch.argsort(ids)
    return order[torch.searchsorted(ids, wanted, sorter=order)]


def images_per_chunk(image_values: int) -> int:
    """Return the number of images per chunk, from the number of values per image."""
    max_images = _MAX_CHUNK_BYTES // (_BYTES_PER_VALUE * image_values)
    return max(1, min(_MAX_CHUNK_IMAGES, max_images))


def group_batches(batch_ids: Iterable[Tensor], max_images: int) -> Iterator[list[Tensor]]:
    """Group consecutive batches into lists of at most `max_images` images, or of one batch."""
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
    """Move batches to an accelerator, each while the one before is computed."""
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
    """Start copying to the device, from page-locked memory so that the host need not wait."""
    pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
    return pinned.to(device, non_blocking=True)


def _receive(sent: tuple[Tensor, ...], arrived: Any, stream: Any) -> tuple[Tensor, ...]:
    """Make the computing stream wait for the copies, and keep their memory until it is done."""
    stream.wait_event(arrived)
    for tensor in sent:
        tensor.record_stream(stream)
    return sent


def _skip(count: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the batches after the first `count`; closing this generator closes theirs."""
    for _ in range(count):
        next(batches)
    yield from batches


def _to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, asynchronously where torch keeps the source alive meanwhile.

    On an Apple GPU it does not: the copy may run after a temporary source is freed.
    """
    return tensor.to(device, non_blocking=has_streams(device))
