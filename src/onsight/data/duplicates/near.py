"""Near-duplicates: the same image resized, encoded again, slightly cropped or mirrored."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
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
from onsight.data.duplicates.comparison import Kind, NearDuplicate, compare_pairs
from onsight.data.pack import Pack
from onsight.data.split import group_identical
from onsight_explain.threads import usable_cores

_CACHE_VERSION = 2  # increase it when other pairs may be found


def find_near_duplicates(
    pack: Pack,
    cache_folder: Path | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[NearDuplicate]:
    """Find pairs of images with the same content that are not identical, by image number.

    Only one of several identical images is compared. A mirrored copy counts only if it is not
    cropped. The pairs depend on the decoded images alone: the cache only saves the search.

    Args:
        pack: The images.
        cache_folder: The cache, if any.
        progress: Called with numbers of images.
    """
    _, distinct = group_identical(pack.digests)

    def parse(content: Any) -> list[NearDuplicate]:
        if not isinstance(content, list):
            raise ValueError("not a list of pairs")
        pairs = []
        for first, second, kind, difference in content:
            if kind not in get_args(Kind) or not 0 <= first < second:
                raise ValueError("not a pair of images")
            numbers = int(distinct[first]), int(distinct[second])
            pairs.append(NearDuplicate(*numbers, kind, float(difference)))
        return pairs

    path = None
    if cache_folder:
        key = _key(pack, distinct)
        path = cached_json_path(cache_folder, "duplicates", _CACHE_VERSION, key)
    if path and (cached := read_cached_json(path, parse)) is not None:
        progress(len(distinct))
        return cached
    found = _find(pack, distinct, [WHOLE, MIRRORED, *cropped_views()], progress)
    if path:
        # Rows of distinct images, as further copies would change the numbers of images.
        rows = np.searchsorted(distinct, [pair[:2] for pair in found]).tolist()
        write_cached_json(path, [(*row, *pair[2:]) for row, pair in zip(rows, found, strict=True)])
    return found


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
    with _single_threads() as pool:
        pairs = [
            pair
            for view, candidates in find_candidates(pack, distinct, views, pool, progress)
            for pair in compare_pairs(pack, candidates, view, pool)
        ]
    # In a large group, each image is paired with the most similar image, not with all.
    groups = _UnionFind()
    pairs.sort(key=lambda pair: pair.difference)
    return sorted(pair for pair in pairs if groups.join(pair.first, pair.second))


@contextmanager
def _single_threads() -> Iterator[Executor]:
    """Yield threads, in each of which torch uses one: faster, and the same whatever the number."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(usable_cores(), "compare", torch.set_num_threads, (1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)


def _key(pack: Pack, distinct: NDArray[np.int64]) -> list[str]:
    """Return everything that the pairs depend on."""
    computed_by = f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    images = hashlib.sha256(pack.digests[distinct].tobytes()).hexdigest()
    return [str(decode.VERSION), computed_by, repr(pack.format), images]
