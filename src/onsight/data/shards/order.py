"""The order of an epoch over shards: shuffled, yet only a few of them are read at a time.

The shards are put into a random order and cut into lanes of equal numbers of images. In its lane
each image is put off by a random part of the next shards, so that those few are mixed evenly.
Every batch takes its share of each lane, so a rank reads its own lanes and no others.
"""

import math

import numpy as np
from numpy.typing import NDArray

from onsight.randomness import key

LANES = 4  # at least; up to so many ranks, batches are the same whatever their number
WINDOW = 4  # shards over which the images of one are spread
_SHARDS, _IMAGES = 1, 2  # what is drawn


def shard_order(
    shard_of: NDArray[np.int32],
    seed: int,
    epoch: int,
    batch_sizes: NDArray[np.int64],
    ranks: int = 1,
) -> NDArray[np.int64]:
    """A permutation of n images for an epoch: int64 (n,).

    shard_of: int32 (n, 2), file and part of it; batch_sizes: int64 (steps,), which add up to n.
    """
    lanes = max(LANES, ranks)
    place = _places(shard_of, _generator(seed, epoch, _SHARDS))
    sequence = np.argsort(place, kind="stable")
    later = _generator(seed, epoch, _IMAGES).random(len(shard_of))
    when = place + WINDOW * later

    shares = _shares(batch_sizes, lanes)
    ends = np.cumsum(shares.sum(axis=0))
    parts = []
    for lane, share in zip(np.split(sequence, ends[:-1]), shares.T, strict=True):
        in_lane = lane[np.argsort(when[lane], kind="stable")]
        step = np.repeat(np.arange(len(share)), share)
        parts.append((step, in_lane))
    steps = np.concatenate([step for step, _ in parts])
    images = np.concatenate([in_lane for _, in_lane in parts])
    return np.asarray(images[np.argsort(steps, kind="stable")])  # by step, then by lane


def files_at_once(file_of: NDArray[np.int32]) -> int:
    """How many files an epoch reads at the same time, about. file_of: int32 (parts,)."""
    files = len(np.unique(file_of))
    return min(files, math.ceil(LANES * (WINDOW + 1) * files / max(1, len(file_of))) + LANES)


def _places(shard_of: NDArray[np.int32], drawn: np.random.Generator) -> NDArray[np.int64]:
    """The place of each image's part in a random order in which files stay together."""
    _, first, part = np.unique(shard_of[:, 1], return_index=True, return_inverse=True)
    files, file_of = np.unique(shard_of[first, 0], return_inverse=True)
    order = np.lexsort((drawn.permutation(len(first)), drawn.permutation(len(files))[file_of]))
    place = np.empty(len(first), np.int64)
    place[order] = np.arange(len(first))
    return place[part]


def _shares(batch_sizes: NDArray[np.int64], lanes: int) -> NDArray[np.int64]:
    """How many images of each batch come from each lane: (steps, lanes), as torch splits them."""
    each, rest = np.divmod(batch_sizes, lanes)
    more = np.arange(lanes)[None, :] < rest[:, None]
    return each[:, None] + more


def _generator(*words: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key(*words)))
