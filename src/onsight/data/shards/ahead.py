"""Telling a source which of its shards are read next."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_AHEAD = 4  # shards asked for before they are needed


class Ahead:
    """Follows a reader through its rows. shard_of: int32 (n,) of each row, in reading order."""

    def __init__(
        self, shard_of: NDArray[np.int32], expect: Callable[[Sequence[int]], None]
    ) -> None:
        _, first = np.unique(shard_of, return_index=True)
        self._first = np.sort(first)  # where in the order each shard is first needed
        self._order = shard_of[self._first].tolist()
        self._expect, self._told = expect, 0

    def reach(self, place: int) -> None:
        """Ask for the shards of the rows before this place, and for a few more."""
        wanted = min(len(self._order), int(np.searchsorted(self._first, place)) + _AHEAD)
        if wanted > self._told:
            self._expect(self._order[self._told : wanted])
            self._told = wanted
