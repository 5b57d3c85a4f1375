"""Batches by (seed, epoch, step), gathered from the pack without a Python loop over pictures."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from onsight.accelerator import has_streams
from onsight.data.pack import Pack
from onsight.data.prefetch import prefetch
from onsight.randomness import permutation


class Batch(NamedTuple):
    """images: uint8 (B, H, W, C); labels: int64 (B,); ids: int64 (B,) picture numbers.

    global_labels: labels of the whole batch, of which these pictures may be one rank's share.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor
    global_labels: Tensor


class BatchSource(Protocol):
    """Where batches come from: pictures already decoded, or decoded on demand."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, W, C) of every picture."""

    @property
    def device(self) -> torch.device:
        """The device that batches are on."""

    def batches(
        self, shares: Iterable[Tensor], epoch_key: tuple[int, int] | None
    ) -> Iterator[Batch]:
        """A batch for each int64 (B,) of picture numbers.

        epoch_key: (seed, epoch) in training, else None.
        """

    def labels_of(self, ids: Tensor) -> Tensor:
        """The labels of these pictures. ids: int64 (B,)."""


@dataclass(frozen=True)
class Pictures:
    """All usable pictures, decoded into one tensor that batches are gathered from.

    pixels: uint8 (n, H * W * C); rows: int64 (n,) the row of picture i; labels: int64 (n,).
    """

    pixels: Tensor
    rows: Tensor
    labels: Tensor
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, pack: Pack) -> "Pictures":
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
        """The device that the pictures are on."""
        return self.pixels.device

    def to(self, device: torch.device) -> "Pictures":
        """The same pictures resident on a device."""
        return Pictures(
            self.pixels.to(device), self.rows.to(device), self.labels.to(device), self.shape
        )

    def copied(self, locked: bool) -> "Pictures":
        """A copy of the pictures in RAM; locked: page-locked, which accelerators can read."""
        pixels = torch.empty_like(self.pixels, pin_memory=locked).copy_(self.pixels)
        return Pictures(pixels, self.rows, self.labels, self.shape)

    def batches(
        self, shares: Iterable[Tensor], epoch_key: tuple[int, int] | None
    ) -> Iterator[Batch]:
        """The batch of each share of picture numbers, the same in every epoch."""
        for ids in shares:
            yield self.gather(ids)

    def gather(self, ids: Tensor) -> Batch:
        """The batch of these pictures. ids: int64 (B,)."""
        here = ids.to(self.pixels.device, non_blocking=True)
        images = self.pixels.index_select(0, self.rows.index_select(0, here))
        labels = self.labels.index_select(0, here)
        return Batch(images.view(-1, *self.shape), labels, here, labels)

    def labels_of(self, ids: Tensor) -> Tensor:
        """The labels of these pictures. ids: int64 (B,)."""
        return self.labels.index_select(0, ids.to(self.labels.device, non_blocking=True))


@dataclass(frozen=True)
class Loader:
    """Hands out batches of the pictures in `ids` (int64, on the CPU) to a device.

    rank of ranks gets its share of each training batch and, in order, every ranks-th batch;
    with_next: each share ends with the picture that follows it in the batch (the first follows
    the last), for mixing.
    """

    pictures: BatchSource
    ids: Tensor
    batch_size: int
    device: torch.device
    rank: int = 0
    ranks: int = 1
    with_next: bool = False

    @cached_property
    def steps(self) -> int:
        """Batches per epoch; too few last pictures for batch norm join the batch before.

        It needs two; on accelerators also one for each rank, as its statistics there would count
        the blank picture of an empty one.
        """
        full, rest = divmod(len(self.ids), self.batch_size)
        fewest = 2 if self.device.type == "cpu" else max(2, self.ranks)
        return max(1, full) if rest < fewest else full + 1

    def epoch(self, seed: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The shuffled batches of an epoch, starting at a step."""
        order = self.ids[permutation(seed, epoch, len(self.ids))]
        steps = range(first_step, self.steps)
        global_batches = [self._global_batch(order, step) for step in steps]
        return self._delivered(self._shared(global_batches, (seed, epoch)))

    def in_order(self) -> Iterator[Batch]:
        """Every picture once, in order; with several ranks, each picture on one of them."""
        shares = torch.split(self.ids, self.batch_size) if len(self.ids) else ()
        return self._delivered(self.pictures.batches(shares[self.rank :: self.ranks], None))

    def _global_batch(self, order: Tensor, step: int) -> Tensor:
        start = step * self.batch_size
        return order[start:] if step == self.steps - 1 else order[start : start + self.batch_size]

    def _shared(self, global_batches: list[Tensor], epoch_key: tuple[int, int]) -> Iterator[Batch]:
        """This rank's share of each global batch of picture numbers."""
        if self.ranks == 1 and not self.with_next:
            yield from self.pictures.batches(global_batches, epoch_key)
            return
        batches = self.pictures.batches(map(self._share, global_batches), epoch_key)
        for batch, ids in zip(batches, global_batches, strict=True):
            yield batch._replace(global_labels=self.pictures.labels_of(ids))

    def _share(self, ids: Tensor) -> Tensor:
        mine = ids.tensor_split(self.ranks)[self.rank]
        if self.with_next and len(mine):
            after = sum(len(part) for part in ids.tensor_split(self.ranks)[: self.rank + 1])
            mine = torch.cat([mine, ids[after % len(ids)].view(1)])
        return mine

    def _delivered(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, moved to the device that computes."""
        if self.pictures.device == self.device:
            yield from batches
        elif has_streams(self.device):
            for tensors in prefetch(batches, self.device):
                yield Batch(*tensors)
        else:
            for batch in batches:
                yield Batch(*(tensor.to(self.device, non_blocking=True) for tensor in batch))
