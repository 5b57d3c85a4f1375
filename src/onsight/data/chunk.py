"""Several batches on an accelerator, gathered and augmented at once: fewer, larger launches."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

_MOST_BYTES = 128 << 20  # of a chunk as uint8 and as float32
_MOST_IMAGES = 8192
_BYTES_A_VALUE = 1 + 4


@dataclass(frozen=True, eq=False)
class Chunk:
    """The images of consecutive batches: images uint8 (N, H, W, C); labels, ids int64 (N,)."""

    images: Tensor
    labels: Tensor
    ids: Tensor


class Part(NamedTuple):
    """A batch's place in its chunk: from start on."""

    chunk: Chunk
    start: int


def images_at_once(values: int) -> int:
    """How many images make a chunk. values: of each image."""
    return max(1, min(_MOST_IMAGES, _MOST_BYTES // (_BYTES_A_VALUE * values)))


def grouped(shares: Iterable[Tensor], at_once: int) -> Iterator[list[Tensor]]:
    """Consecutive shares of image numbers, together at most so many, but at least one share."""
    group: list[Tensor] = []
    count = 0
    for ids in shares:
        if group and count + len(ids) > at_once:
            yield group
            group, count = [], 0
        group.append(ids)
        count += len(ids)
    if group:
        yield group
