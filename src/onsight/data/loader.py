"""Batches by (seed, epoch, step), gathered from the pack without a Python loop over images."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.chunk import Chunk, Part, grouped, images_at_once
from onsight.data.pack import Pack
from onsight.data.prefetch import prefetch
from onsight.data.shards.order import draw_shard_order
from onsight.randomness import permutation
from onsight_explain.devices import has_streams


class Batch(NamedTuple):
    """images: uint8 (B, H, W, C); labels: int64 (B,); ids: int64 (B,) image numbers.

    global_labels: labels of the whole batch, of which these images may be one rank's share.
    part: the batch's place in a chunk, if it was gathered with others.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor
    global_labels: Tensor
    part: Part | None = None


class BatchSource(Protocol):
    """Where batches come from: images already decoded, or decoded on demand."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every image."""

    @property
    def device(self) -> torch.device:
        """The device that batches are on."""

    def batches(
        self, shares: Iterable[Tensor], epoch_key: tuple[int, int] | None, locked: bool = False
    ) -> Iterator[Batch]:
        """A batch for each int64 (B,) of image numbers.

        epoch_key: (seed, epoch) in training, else None; locked: the images are in page-locked
        memory, from which an accelerator copies by itself.
        """

    def labels_of(self, ids: Tensor) -> Tensor:
        """The labels of these images. ids: int64 (B,)."""

    def shards_of(self, ids: Tensor) -> NDArray[np.int32] | None:
        """The file and part of it that each image is in: (B, 2); None if any order will do."""


@dataclass(frozen=True)
class Images:
    """All usable images, decoded into one tensor that batches are gathered from.

    pixels: uint8 (n, H * W * C); rows: int64 (n,) the row of image i; labels: int64 (n,).
    """

    pixels: Tensor
    rows: Tensor
    labels: Tensor
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, pack: Pack) -> "Images":
        """The pack's memory map as tensors, without a copy."""
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
        """The same images resident on a device."""
        return Images(
            self.pixels.to(device), self.rows.to(device), self.labels.to(device), self.shape
        )

    def copied(self) -> "Images":
        """A copy of the images in RAM."""
        return Images(self.pixels.clone(), self.rows, self.labels, self.shape)

    def batches(
        self, shares: Iterable[Tensor], epoch_key: tuple[int, int] | None, locked: bool = False
    ) -> Iterator[Batch]:
        """The batch of each share of image numbers, the same in every epoch."""
        if self.device.type == "cpu":  # whose caches have room for a batch
            for ids in shares:
                yield self.gather(ids, locked)
            return
        for group in grouped(shares, images_at_once(math.prod(self.shape))):
            yield from self._gather_group(group)

    def _gather_group(self, group: list[Tensor]) -> Iterator[Batch]:
        whole = self.gather(torch.cat(group))
        chunk = Chunk(whole.images, whole.labels, whole.ids)
        start = 0
        for ids in group:
            images, labels, here = (one[start : start + len(ids)] for one in whole[:3])
            yield Batch(images, labels, here, labels, Part(chunk, start))
            start += len(ids)

    def gather(self, ids: Tensor, locked: bool = False) -> Batch:
        """The batch of these images. ids: int64 (B,); locked: in page-locked memory."""
        here = _sent(ids, self.pixels.device)
        # torch locks a few such buffers once, and hands one out again when its copy has ended.
        size = len(here), self.pixels.shape[1]
        place = torch.empty(size, dtype=torch.uint8, pin_memory=True) if locked else None
        rows = self.rows.index_select(0, here)
        images = torch.index_select(self.pixels, 0, rows, out=place)
        labels = self.labels.index_select(0, here)
        return Batch(images.view(-1, *self.shape), labels, here, labels)

    def labels_of(self, ids: Tensor) -> Tensor:
        """The labels of these images. ids: int64 (B,)."""
        return self.labels.index_select(0, _sent(ids, self.labels.device))

    def shards_of(self, ids: Tensor) -> None:
        """They are read from memory, in any order."""


@dataclass(frozen=True)
class Loader:
    """Hands out batches of the images in `ids` (int64, on the CPU) to a device.

    rank of ranks gets its share of each training batch and, in order, every ranks-th batch;
    with_next: each share ends with the image that follows it in the batch (the first follows
    the last), for mixing.
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
        """Batches per epoch; too few last images for batch norm join the batch before.

        It needs two; on accelerators also one for each rank, as its statistics there would count
        the blank image of an empty one.
        """
        full, rest = divmod(len(self.ids), self.batch_size)
        fewest = 2 if self.device.type == "cpu" else max(2, self.ranks)
        return max(1, full) if rest < fewest else full + 1

    def epoch(self, seed: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The shuffled batches of an epoch, starting at a step."""
        on = self.images.device
        order = self.ids[self._order(seed, epoch)].to(on)
        # A resumed epoch has the chunks of a whole one, as some kernels round by their size.
        begin = first_step if on.type == "cpu" else 0
        global_batches = [self._global_batch(order, step) for step in range(begin, self.steps)]
        batches = self._delivered(self._shared(global_batches, (seed, epoch)))
        return _after(first_step - begin, batches)

    def in_order(self) -> Iterator[Batch]:
        """Every image once, in order; with several ranks, each image on one of them."""
        ids = self.ids.to(self.images.device)
        shares = torch.split(ids, self.batch_size) if len(ids) else ()
        shares = shares[self.rank :: self.ranks]
        return self._delivered(self.images.batches(shares, None, self._is_sent_ahead))

    def _order(self, seed: int, epoch: int) -> Tensor:
        """The places in `ids` of an epoch's images: shuffled, and by shards if these are read."""
        shards = self.images.shards_of(self.ids)
        if shards is None:
            return permutation(seed, epoch, len(self.ids))
        sizes = np.full(self.steps, self.batch_size)
        sizes[-1] = len(self.ids) - sizes[:-1].sum()
        return torch.from_numpy(draw_shard_order(shards, seed, epoch, sizes, self.ranks))

    def _global_batch(self, order: Tensor, step: int) -> Tensor:
        start = step * self.batch_size
        return order[start:] if step == self.steps - 1 else order[start : start + self.batch_size]

    def _shared(self, global_batches: list[Tensor], epoch_key: tuple[int, int]) -> Iterator[Batch]:
        """This rank's share of each global batch of image numbers."""
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

    def _delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, moved to the device that computes."""
        if self.images.device == self.device:
            yield from batches
        elif self._is_sent_ahead:
            for images, labels, ids, whole in prefetch((one[:4] for one in batches), self.device):
                yield Batch(images, labels, ids, whole)
        else:
            for batch in batches:
                images, labels, ids, whole = (_sent(one, self.device) for one in batch[:4])
                yield Batch(images, labels, ids, whole)


def places_of(ids: Tensor, some: Tensor) -> Tensor:
    """Where some of these different image numbers are among them. ids: int64 (n,), any order."""
    order = torch.argsort(ids)
    return order[torch.searchsorted(ids, some, sorter=order)]


def _after(count: int, batches: Iterator[Batch]) -> Iterator[Batch]:
    """The batches after the first ones; closing this closes them."""
    for _ in range(count):
        next(batches)
    yield from batches


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for the copy where torch keeps its source meanwhile.

    An Apple GPU reads the tensor itself, later, when a temporary one would be gone.
    """
    return tensor.to(device, non_blocking=has_streams(device))
