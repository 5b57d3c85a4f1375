"""Batches by (seed, epoch, step), gathered straight from the pack: no Python per picture."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from onsight.data.pack import Pack
from onsight.randomness import permutation


class Batch(NamedTuple):
    """images: uint8 (B, H, W, C); labels: int64 (B,); ids: int64 (B,) picture numbers.

    whole: labels of the whole batch, of which these pictures may be one rank's share.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor
    whole: Tensor


@dataclass(frozen=True)
class Pictures:
    """All usable pictures where batches are gathered from.

    pixels: uint8 (n, H * W * C); rows: int64 (n,) place of picture i; labels: int64 (n,).
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

    def to(self, device: torch.device) -> "Pictures":
        """The same pictures resident on a device."""
        return Pictures(
            self.pixels.to(device), self.rows.to(device), self.labels.to(device), self.shape
        )

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

    rank of ranks gets its share of each training batch, and every ranks-th batch in order;
    with_next: each share ends with the picture that comes after it in the batch (after the
    last the first), for mixing.
    """

    pictures: Pictures
    ids: Tensor
    batch_size: int
    device: torch.device
    rank: int = 0
    ranks: int = 1
    with_next: bool = False

    @property
    def steps(self) -> int:
        """Batches an epoch; a last picture alone joins the one before, for batch norm's sake."""
        full, rest = divmod(len(self.ids), self.batch_size)
        return max(1, full) if rest <= 1 else full + 1

    def epoch(self, seed: int, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The shuffled batches of an epoch, from a step on."""
        order = self.ids[permutation(seed, epoch, len(self.ids))]
        return self._batches(order, first_step)

    def in_order(self) -> Iterator[Batch]:
        """Every picture once, in order; over several ranks, each picture at one of them."""
        batches = torch.split(self.ids, self.batch_size) if len(self.ids) else ()
        for ids in batches[self.rank :: self.ranks]:
            yield self._to_device(self.pictures.gather(ids))

    def _batches(self, order: Tensor, first_step: int) -> Iterator[Batch]:
        for step in range(first_step, self.steps):
            start = step * self.batch_size
            end = len(order) if step == self.steps - 1 else start + self.batch_size
            yield self._to_device(self._share(order[start:end]))

    def _share(self, ids: Tensor) -> Batch:
        if self.ranks == 1 and not self.with_next:
            return self.pictures.gather(ids)
        mine = ids.tensor_split(self.ranks)[self.rank]
        if self.with_next and len(mine):
            after = sum(len(part) for part in ids.tensor_split(self.ranks)[: self.rank + 1])
            mine = torch.cat([mine, ids[after % len(ids)].view(1)])
        return self.pictures.gather(mine)._replace(whole=self.pictures.labels_of(ids))

    def _to_device(self, batch: Batch) -> Batch:
        if batch.images.device == self.device:
            return batch
        return Batch(*(tensor.to(self.device, non_blocking=True) for tensor in batch))
