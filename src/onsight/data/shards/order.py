"""The order of an epoch over shards: shuffled, yet only a few shards are read at a time.

The shards are put into a random order and cut into lanes of equal numbers of images. Within its
lane each image is delayed by a random part of the next few shards, so that these are mixed evenly.
Every batch takes images from each lane in proportion, so a rank reads only its lanes.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from onsight.randomness import key

LANES = 4  # minimum number of lanes; batches are the same for any number of ranks up to it
WINDOW = 4  # number of shards over which one shard's images are spread
_PREFETCHED = 4  # number of shards requested before they are needed
_SHARDS, _IMAGES = 1, 2  # streams of random numbers


def draw_shard_order(
    shard_of_row: NDArray[np.int32],
    seed: int,
    epoch: int,
    batch_sizes: NDArray[np.int64],
    ranks: int = 1,
) -> NDArray[np.int64]:
    """Return a permutation of n images for an epoch: int64 (n,).

    shard_of_row: int32 (n, 2), file and part of each; batch_sizes: int64 (steps,), whose sum is n.
    """
    lanes = max(LANES, ranks)
    place = _draw_places(shard_of_row, _generator(seed, epoch, _SHARDS))
    sequence = np.argsort(place, kind="stable")
    delay = _generator(seed, epoch, _IMAGES).random(len(shard_of_row))
    when = place + WINDOW * delay

    shares = _share_batches(batch_sizes, lanes)
    ends = np.cumsum(shares.sum(axis=0))
    parts = []
    for lane, share in zip(np.split(sequence, ends[:-1]), shares.T, strict=True):
        in_lane = lane[np.argsort(when[lane], kind="stable")]
        step = np.repeat(np.arange(len(share)), share)
        parts.append((step, in_lane))
    steps = np.concatenate([step for step, _ in parts])
    images = np.concatenate([in_lane for _, in_lane in parts])
    return np.asarray(images[np.argsort(steps, kind="stable")])  # sorted by step, then by lane


def estimate_open_files(file_of_part: NDArray[np.int32]) -> int:
    """Return about how many files an epoch reads at the same time. file_of_part: int32 (parts,)."""
    files = len(np.unique(file_of_part))
    parts = max(1, len(file_of_part))
    return min(files, math.ceil(LANES * (WINDOW + 1) * files / parts) + LANES)


class ShardPrefetcher:
    """Requests the next shards as a reader advances through its rows."""

    def __init__(
        self, part_of_row: NDArray[np.int32], prefetch: Callable[[Sequence[int]], None]
    ) -> None:
        """Prepare for rows in reading order. part_of_row: int32 (n,)."""
        _, first = np.unique(part_of_row, return_index=True)
        self._first = np.sort(first)  # position in the order at which each part is first needed
        self._order = part_of_row[self._first].tolist()
        self._prefetch, self._requested = prefetch, 0

    def reach(self, position: int) -> None:
        """Request the shards of the rows before this position, and a few more."""
        needed = int(np.searchsorted(self._first, position))
        wanted = min(len(self._order), needed + _PREFETCHED)
        if wanted > self._requested:
            self._prefetch(self._order[self._requested : wanted])
            self._requested = wanted


def _draw_places(
    shard_of_row: NDArray[np.int32], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return the place of each image's part in a random order that keeps files together."""
    _, first, part = np.unique(shard_of_row[:, 1], return_index=True, return_inverse=True)
    files, file_of_part = np.unique(shard_of_row[first, 0], return_inverse=True)
    parts_drawn = generator.permutation(len(first))
    files_drawn = generator.permutation(len(files))
    order = np.lexsort((parts_drawn, files_drawn[file_of_part]))
    place = np.empty(len(first), np.int64)
    place[order] = np.arange(len(first))
    return place[part]


def _share_batches(batch_sizes: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """Return how many images of each batch come from each lane, split as torch does.

    Shape (steps, lanes).
    """
    each, rest = np.divmod(batch_sizes, lanes)
    more = np.arange(lanes)[None, :] < rest[:, None]
    return each[:, None] + more


def _generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key(*words)))
