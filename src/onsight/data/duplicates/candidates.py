"""Pairs of images that may be alike: by their signatures, then by how far apart these are.

n images, m pairs, B batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.duplicates.signatures import (
    BITS,
    SIDE,
    View,
    frequencies,
    planes,
)
from onsight.data.duplicates.sorted_lists import Pairs, Signatures, SortedLists
from onsight.data.pack import Pack

_BATCH = 1024  # images
_SAMPLE = 8192  # images are numbered by digest, so the first are a fair sample
_FEWEST = 64  # of which there is a usual image
_NOISE = 256.0  # of a frequency: one grey level to and fro
_FAR = 0.4  # of an image's frequencies by which candidates may differ
_MOST = 8  # candidates of each image, the nearest


class _Found(NamedTuple):
    """Candidates: rows of two images int64 (m,), how far apart they are, the first one's view."""

    query: NDArray[np.int64]
    image: NDArray[np.int64]
    far: NDArray[np.float32]
    view: NDArray[np.int64]

    @classmethod
    def joined(cls, parts: Sequence["_Found"]) -> "_Found":
        return cls(
            np.concatenate([one.query for one in parts]),
            np.concatenate([one.image for one in parts]),
            np.concatenate([one.far for one in parts]),
            np.concatenate([one.view for one in parts]),
        )

    def take(self, rows: NDArray[np.int64]) -> "_Found":
        return _Found(self.query[rows], self.image[rows], self.far[rows], self.view[rows])

    def nearest(self, keys: NDArray[np.int64]) -> "_Found":
        """Of those with equal keys the nearest, in the order of the keys."""
        order = np.lexsort((self.far, keys))
        first = np.append(True, np.diff(keys[order]) != 0)[: len(order)]
        return self.take(order[first])

    def few_for_each(self) -> "_Found":
        """Of each query's candidates the nearest."""
        found = self.take(np.lexsort((self.far, self.query)))
        place = np.arange(len(found.query)) - np.searchsorted(found.query, found.query)
        return found.take(np.flatnonzero(place < _MOST))


def find_candidates(
    pack: Pack, kept: NDArray[np.int64], views: Sequence[View], progress: Callable[[int], None]
) -> Iterator[tuple[View, Pairs]]:
    """Pairs (query, image) of these images that may be alike, by the view of the query.

    kept: int64 (n,) image numbers; progress is called with counts of images.
    """
    whole = torch.cat([frequencies(grey) for grey in _grey(pack, kept)])
    some = whole[:_SAMPLE] if len(whole) >= _FEWEST else torch.zeros(1, BITS)
    medians = some.quantile(0.5, dim=0)
    # What an image has nothing of must not be decided by noise.
    borders = torch.where(medians.abs() < _NOISE, _NOISE, medians)
    lists = SortedLists(_signatures(whole, borders))
    count = len(kept)
    batches = []
    for first, grey in zip(range(0, count, _BATCH), _grey(pack, kept), strict=True):
        parts = [
            _near_enough(frequencies(grey, view), whole, lists, borders, first, number)
            for number, view in enumerate(views)
        ]
        found = _Found.joined(parts)
        batches.append(found.nearest(found.query * count + found.image).few_for_each())
        progress(len(grey))
    found = _Found.joined(batches)
    lower, higher = np.minimum(found.query, found.image), np.maximum(found.query, found.image)
    found = found.nearest(lower * count + higher)
    for number, view in enumerate(views):
        rows = found.view == number
        yield view, np.stack([kept[found.query[rows]], kept[found.image[rows]]], 1)


def _signatures(spectra: Tensor, borders: Tensor) -> Signatures:
    return np.packbits((spectra > borders).numpy(), axis=1)


def _near_enough(
    queries: Tensor, whole: Tensor, lists: SortedLists, borders: Tensor, first: int, view: int
) -> _Found:
    """The candidates of queries, whose rows go on from first, in which frequencies are alike."""
    pairs = lists.near(_signatures(queries, borders), first)
    theirs = whole[pairs[:, 1]]
    size = theirs.norm(dim=1).clamp(min=_NOISE)
    far = ((queries[pairs[:, 0] - first] - theirs).norm(dim=1) / size).numpy()
    near = far <= _FAR
    pairs = pairs[near]
    return _Found(pairs[:, 0], pairs[:, 1], far[near], np.full(len(pairs), view))


def _grey(pack: Pack, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
    """Batches of images as float32 (B, 64, 64)."""
    for first in range(0, len(numbers), _BATCH):
        yield planes(pack.take(numbers[first : first + _BATCH]), SIDE).mean(1)
