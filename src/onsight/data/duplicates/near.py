"""Near-duplicates: the same image resized, encoded again, slightly cropped or mirrored."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.data import decode
from onsight.data.cache import cached_json_path, read_cached_json, write_cached_json
from onsight.data.duplicates.candidates import (
    MIRRORED,
    WHOLE,
    View,
    cropped_views,
    find_candidates,
)
from onsight.data.duplicates.comparison import NearDuplicate, compare_pairs
from onsight.data.pack import Pack
from onsight.data.sources.source import Source
from onsight.data.split import group_identical

_CACHE_VERSION = 1  # increase it when other pairs may be found


def find_near_duplicates(
    pack: Pack, progress: Callable[[int], None] = lambda done: None
) -> list[NearDuplicate]:
    """Find pairs of images with the same content that are not identical, by image number.

    Only one of several identical images is compared. A mirrored copy counts only if it is not
    cropped. progress: called with numbers of images.
    """
    _, distinct = group_identical(pack.digests)
    return _find(pack, distinct, [WHOLE, MIRRORED, *cropped_views()], progress)


def sample_near_duplicates(
    pack: Pack, sample: NDArray[np.int64], cache_folder: Path | None
) -> list[tuple[int, int]]:
    """Find pairs among some distinct images, without cropped and mirrored copies.

    The pairs are cached for later runs on the same images.

    Args:
        pack: The images.
        sample: The numbers (n,) of the images to compare, in ascending order.
        cache_folder: The cache, if any.

    Returns:
        Pairs of image numbers.
    """

    def parse(content: object) -> list[tuple[int, int]]:
        rows = np.array(content, np.int64).reshape(-1, 2)
        if rows.size and rows.min() < 0:
            raise ValueError("rows that the sample does not have")
        return [(first, second) for first, second in sample[rows].tolist()]

    key = [repr(pack.format), hashlib.sha256(pack.digests[sample].tobytes()).hexdigest()]
    path = _cache_path(cache_folder, key) if cache_folder else None
    if path and (cached := read_cached_json(path, parse)) is not None:
        return cached
    found = _find(pack, sample, [WHOLE], lambda done: None)
    pairs = [(pair.first, pair.second) for pair in found]
    if path:
        # Rows of the sample, as further copies would change the numbers of images.
        write_cached_json(path, np.searchsorted(sample, pairs).tolist())
    return pairs


def cache_near_duplicates(
    cache_folder: Path | None, source: Source, pack: Pack, pairs: Sequence[NearDuplicate]
) -> None:
    """Keep the pairs that a check found for later training runs on the same DATA."""
    if cache_folder is None:
        return
    rows = [[int(pack.sources[pair.first]), int(pack.sources[pair.second])] for pair in pairs]
    write_cached_json(_cache_path(cache_folder, _source_key(source)), rows)


def read_cached_duplicates(
    cache_folder: Path | None, source: Source, pack: Pack
) -> list[tuple[int, int]] | None:
    """Return cached pairs by image number, or None if the present DATA was never checked."""
    if cache_folder is None:
        return None
    numbers = np.full(len(source.index), -1)
    numbers[pack.sources] = np.arange(len(pack))

    def parse(content: object) -> list[tuple[int, int]]:
        rows = np.array(content, np.int64).reshape(-1, 2)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(numbers):
            raise ValueError("rows that the source does not have")
        return [
            (first, second) for first, second in numbers[rows].tolist() if min(first, second) >= 0
        ]

    return read_cached_json(_cache_path(cache_folder, _source_key(source)), parse)


def connected_groups(count: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the lowest index in each index's group, where pairs connect: int64 (count,)."""
    groups = _UnionFind()
    for first, second in pairs:
        groups.join(first, second)
    return np.array([groups.lowest(index) for index in range(count)], np.int64)


class _UnionFind:
    """Groups of indices; each index starts in a separate group."""

    def __init__(self) -> None:
        self._lower: dict[int, int] = {}

    def join(self, first: int, second: int) -> bool:
        """Unite two indices' groups; return False if they were already one group."""
        low, high = sorted((self.lowest(first), self.lowest(second)))
        if low == high:
            return False
        self._lower[high] = low
        return True

    def lowest(self, index: int) -> int:
        """Return the lowest index of an index's group."""
        root = index
        while root in self._lower:
            root = self._lower[root]
        while index != root:  # shorten the path for the next search
            self._lower[index], index = root, self._lower[index]
        return root


def _find(
    pack: Pack, distinct: NDArray[np.int64], views: Sequence[View], progress: Callable[[int], None]
) -> list[NearDuplicate]:
    pairs = [
        pair
        for view, candidates in find_candidates(pack, distinct, views, progress)
        for pair in compare_pairs(pack, candidates, view)
    ]
    # In a large group, each image is paired with the most similar image, not with all.
    groups = _UnionFind()
    pairs.sort(key=lambda pair: pair.difference)
    return sorted(pair for pair in pairs if groups.join(pair.first, pair.second))


def _source_key(source: Source) -> list[str]:
    return [source.kind, str(source.root), source.fingerprint]


def _cache_path(cache_folder: Path, key: list[str]) -> Path:
    return cached_json_path(cache_folder, "duplicates", _CACHE_VERSION, [decode.VERSION, *key])
