"""Pairs of images that may be near-duplicates: similar in their lowest frequencies.

An image's signature is the signs of its lowest frequencies, which nearly agree for images that look
alike. Sorting the signatures many times, each time by other bits first, brings signatures that
differ in few bits next to each other at least once. It takes n log n for n images, however alike
all of them are.

n images, m pairs, B batch, H height, W width, C channels; shares of a side go from 0 to 1.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.pack import Pack

BITS = 96
SIDE = 64  # pixels a side of the grey images that frequencies are computed from

_SCALED = 32  # pixels a side of each scaled view
_MAX_FREQUENCY = 14  # frequencies along a side; the lowest of both sides together are kept
_CUTS = (0.05, 0.1)  # fractions of a side that a slightly cropped copy may lack

_BATCH = 256  # images per batch
_SAMPLE = 8192  # images
_MIN_SAMPLE = 64  # images, for medians to be meaningful
_NOISE = 256.0  # amplitude of a frequency: one grey level up and down
_MAX_DISTANCE = 0.4  # largest difference of candidates, relative to an image's frequencies
_MAX_CANDIDATES = 8  # nearest candidates kept per image

_LISTS = 16
_NEIGHBOURS = 2  # neighbours checked on each side in a sorted list
_KEY_BITS = 64  # bits per sort key
_MAX_BITS = 24  # most bits in which a pair may differ; unrelated images differ in about 48
_ROWS = 65_536  # signatures per block

Signatures = NDArray[np.uint8]  # (n, 12): 96 bits
Pairs = NDArray[np.int64]  # (m, 2): a query and an image


class View(NamedTuple):
    """A part of an image, perhaps mirrored, that a copy may show; edges are shares of a side."""

    top: float = 0.0
    left: float = 0.0
    bottom: float = 1.0
    right: float = 1.0
    is_mirrored: bool = False

    def of(self, images: Tensor) -> Tensor:
        """Return this view of images (B, H, W, C)."""
        height, width = images.shape[1:3]
        rows = slice(round(self.top * height), round(self.bottom * height))
        columns = slice(round(self.left * width), round(self.right * width))
        part = images[:, rows, columns]
        return part.flip(2) if self.is_mirrored else part


WHOLE, MIRRORED = View(), View(is_mirrored=True)


def cropped_views() -> list[View]:
    """Return parts of an image cut at one side, at two that meet, or at all four."""
    views = []
    for cut in _CUTS:
        edges = ((0.0, 1.0), (0.0, 1 - cut), (cut, 1.0))
        views += [
            View(top, left, bottom, right)
            for top, bottom in edges
            for left, right in edges
            if (top, left, bottom, right) != WHOLE[:4]
        ]
        views.append(View(cut / 2, cut / 2, 1 - cut / 2, 1 - cut / 2))
    return views


def find_candidates(
    pack: Pack,
    numbers: NDArray[np.int64],
    views: Sequence[View],
    pool: Executor,
    progress: Callable[[int], None],
) -> Iterator[tuple[View, Pairs]]:
    """Yield pairs (query, image) of some images that may be alike, by the view of the query.

    numbers: int64 (n,) image numbers; progress is called with numbers of images done.
    """
    count, starts = len(numbers), range(0, len(numbers), _BATCH)

    def read_grey(first: int) -> Tensor:
        return resize_to_planes(pack.take(numbers[first : first + _BATCH]), SIDE).mean(1)

    spectra = torch.cat([*pool.map(lambda first: frequencies(read_grey(first)), starts)])
    sample = spectra[:_SAMPLE] if len(spectra) >= _MIN_SAMPLE else torch.zeros(1, BITS)
    medians = sample.quantile(0.5, dim=0)
    # Noise must not decide the bit of a frequency that an image hardly has.
    borders = torch.where(medians.abs() < _NOISE, _NOISE, medians)
    lists = SortedLists(_signatures(spectra, borders))

    def find_similar(first: int) -> _Candidates:
        grey = read_grey(first)
        parts = [
            _near_enough(frequencies(grey, view), spectra, lists, borders, first, index)
            for index, view in enumerate(views)
        ]
        similar = _Candidates.join(parts)
        return similar.nearest(similar.query * count + similar.image).limit_per_query()

    batches = []
    for first, similar in zip(starts, pool.map(find_similar, starts), strict=True):
        batches.append(similar)
        progress(min(_BATCH, count - first))
    similar = _Candidates.join(batches)
    lower = np.minimum(similar.query, similar.image)
    higher = np.maximum(similar.query, similar.image)
    similar = similar.nearest(lower * count + higher)
    for index, view in enumerate(views):
        rows = similar.view == index
        yield view, np.stack([numbers[similar.query[rows]], numbers[similar.image[rows]]], 1)


def frequencies(grey: Tensor, view: View = WHOLE) -> Tensor:
    """Return the lowest frequencies, except the mean, of a view: float32 (B, 96).

    grey: float32 (B, 64, 64).
    """
    down = _cosines(view.top, view.bottom, False)
    across = _cosines(view.left, view.right, view.is_mirrored)
    rows, columns = _lowest_frequencies()
    return (down @ grey @ across.T)[:, rows, columns]


def resize_to_planes(images: Tensor, side: int) -> Tensor:
    """Resize images uint8 (B, H, W, C) to float32 (B, C, side, side), 0 to 255."""
    size = (side, side)
    planes = images.permute(0, 3, 1, 2).float()
    return F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)


class SortedLists:
    """The signatures of n images, sorted in several ways."""

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures
        random = np.random.default_rng(0)
        self.orders = [random.permutation(BITS)[:_KEY_BITS] for _ in range(_LISTS)]
        self.lists = [_sort(_keys(signatures, order)) for order in self.orders]

    def find_similar(self, queries: Signatures, first: int) -> Pairs:
        """Return pairs of a query and another image with a similar signature.

        Queries are numbered from `first` on. A pair may be missing, the likelier the more bits
        differ.
        """
        numbers = np.arange(first, first + len(queries))
        pairs = []
        for order, (keys, rows) in zip(self.orders, self.lists, strict=True):
            place = np.searchsorted(keys, _keys(queries, order))
            for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1):
                near = rows[np.clip(place + step, 0, len(keys) - 1)]
                differing = count_different_bits(queries, self.signatures[near])
                alike = (differing <= _MAX_BITS) & (near != numbers)
                pairs.append(numbers[alike] * len(keys) + near[alike])
        unique = np.unique(np.concatenate(pairs))
        return np.stack(np.divmod(unique, len(keys)), 1)


def count_different_bits(first: Signatures, second: Signatures) -> NDArray[np.int64]:
    """Count the bits in which signatures differ, row by row: int64 (n,)."""
    words = np.ascontiguousarray(first ^ second).view(np.uint32)
    return np.asarray(np.bitwise_count(words).sum(1, dtype=np.int64))


class _Candidates(NamedTuple):
    """Pairs of possibly similar images, as columns."""

    query: NDArray[np.int64]  # (m,) rows of the first image
    image: NDArray[np.int64]  # (m,) rows of the second image
    distance: NDArray[np.float32]  # (m,) relative difference of their frequencies
    view: NDArray[np.int64]  # (m,) index of the query's view

    @classmethod
    def join(cls, parts: Sequence["_Candidates"]) -> "_Candidates":
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def take(self, rows: NDArray[np.int64]) -> "_Candidates":
        return _Candidates(self.query[rows], self.image[rows], self.distance[rows], self.view[rows])

    def nearest(self, keys: NDArray[np.int64]) -> "_Candidates":
        """Return the nearest pair for each key, in the order of the keys."""
        order = np.lexsort((self.distance, keys))
        first = np.append(True, np.diff(keys[order]) != 0)[: len(order)]
        return self.take(order[first])

    def limit_per_query(self) -> "_Candidates":
        """Return the nearest few of each query's candidates."""
        ordered = self.take(np.lexsort((self.distance, self.query)))
        place = np.arange(len(ordered.query)) - np.searchsorted(ordered.query, ordered.query)
        return ordered.take(np.flatnonzero(place < _MAX_CANDIDATES))


def _signatures(spectra: Tensor, borders: Tensor) -> Signatures:
    return np.packbits((spectra > borders).numpy(), axis=1)


def _near_enough(
    queries: Tensor, spectra: Tensor, lists: SortedLists, borders: Tensor, first: int, view: int
) -> _Candidates:
    """Return the candidates of queries, numbered from first on, with similar frequencies."""
    pairs = lists.find_similar(_signatures(queries, borders), first)
    theirs = spectra[pairs[:, 1]]
    size = theirs.norm(dim=1).clamp(min=_NOISE)
    distance = ((queries[pairs[:, 0] - first] - theirs).norm(dim=1) / size).numpy()
    near = distance <= _MAX_DISTANCE
    pairs = pairs[near]
    return _Candidates(pairs[:, 0], pairs[:, 1], distance[near], np.full(len(pairs), view))


@lru_cache(maxsize=64)
def _cosines(low: float, high: float, is_mirrored: bool) -> Tensor:
    """Return the scaling and cosine transform of a part of a side as one matrix (14, 64)."""
    part = torch.eye(SIDE)[:, round(low * SIDE) : round(high * SIDE)]
    size = (SIDE, _SCALED)
    scaled = F.interpolate(
        part[None, None], size, mode="bilinear", antialias=True, align_corners=False
    )[0, 0]
    place = torch.arange(_SCALED)
    transform = torch.cos(math.pi / _SCALED * (place + 0.5) * place[:_MAX_FREQUENCY, None])
    return transform @ (scaled.flip(1) if is_mirrored else scaled).T


@lru_cache(maxsize=1)
def _lowest_frequencies() -> tuple[Tensor, Tensor]:
    """Return the row and column frequencies of the lowest products, without the mean."""
    sides = range(_MAX_FREQUENCY)
    order = sorted(
        ((row, column) for row in sides for column in sides),
        key=lambda product: (product[0] + product[1], product[0]),
    )
    rows, columns = torch.tensor(order[1 : BITS + 1]).T
    return rows, columns


def _keys(signatures: Signatures, order: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 bits of each signature in this order, as a number."""
    parts = [
        np.packbits(np.unpackbits(signatures[first : first + _ROWS], axis=1)[:, order], axis=1)
        for first in range(0, len(signatures), _ROWS)
    ]
    return np.ascontiguousarray(np.concatenate(parts)).view(">u8")[:, 0].astype(np.uint64)


def _sort(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    order = np.argsort(keys, kind="stable")
    return keys[order], order
