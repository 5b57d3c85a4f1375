"""Which images may be alike: neighbours in lists sorted by some bits of their signatures.

Sorting many times, each time by other bits first, brings signatures that differ in few bits next to
each other at least once. It takes n log n for n images, however alike all of them are.
"""

import numpy as np
from numpy.typing import NDArray

from onsight.data.duplicates.signatures import BITS

_LISTS = 16
_REACH = 2  # neighbours on each side
_KEY_BITS = 64  # sorted by
_MOST_BITS = 24  # in which a pair may differ; unrelated images differ in about 48
_ROWS = 65_536  # at once

Signatures = NDArray[np.uint8]  # (n, 12): 96 bits
Pairs = NDArray[np.int64]  # (m, 2): a query and an image


class SortedLists:
    """The signatures of n images, sorted in several ways."""

    def __init__(self, signatures: Signatures) -> None:
        self.signatures = signatures
        drawn = np.random.default_rng(0)
        self.orders = [drawn.permutation(BITS)[:_KEY_BITS] for _ in range(_LISTS)]
        self.lists = [_sorted(_keys(signatures, order)) for order in self.orders]

    def near(self, queries: Signatures, first: int) -> Pairs:
        """Pairs of a query, whose numbers go on from first, and an image of another number.

        A pair may be missing, the likelier the more bits differ.
        """
        numbers = np.arange(first, first + len(queries))
        found = []
        for order, (keys, rows) in zip(self.orders, self.lists, strict=True):
            place = np.searchsorted(keys, _keys(queries, order))
            for step in range(-_REACH, _REACH + 1):
                near = rows[np.clip(place + step, 0, len(keys) - 1)]
                differing = different_bits(queries, self.signatures[near])
                alike = (differing <= _MOST_BITS) & (near != numbers)
                found.append(numbers[alike] * len(keys) + near[alike])
        unique = np.unique(np.concatenate(found))
        return np.stack(np.divmod(unique, len(keys)), 1)


def different_bits(first: Signatures, second: Signatures) -> NDArray[np.int64]:
    """In how many bits signatures differ, row by row: int64 (n,)."""
    words = np.ascontiguousarray(first ^ second).view(np.uint32)
    return np.asarray(np.bitwise_count(words).sum(1, dtype=np.int64))


def _keys(signatures: Signatures, order: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 bits of each signature in this order, as a number."""
    parts = [
        np.packbits(np.unpackbits(signatures[first : first + _ROWS], axis=1)[:, order], axis=1)
        for first in range(0, len(signatures), _ROWS)
    ]
    return np.ascontiguousarray(np.concatenate(parts)).view(">u8")[:, 0].astype(np.uint64)


def _sorted(keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    order = np.argsort(keys, kind="stable")
    return keys[order], order
