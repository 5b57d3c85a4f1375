"""Groups of numbers that pairs connect."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class Groups:
    """Numbers, each in a group of its own until it is joined with others."""

    def __init__(self) -> None:
        self._lower: dict[int, int] = {}

    def join(self, first: int, second: int) -> bool:
        """Make one group of two numbers' groups; False if it was one before."""
        one, other = self.lowest(first), self.lowest(second)
        if one == other:
            return False
        self._lower[max(one, other)] = min(one, other)
        return True

    def lowest(self, number: int) -> int:
        """The lowest number of a number's group."""
        found = number
        while found in self._lower:
            found = self._lower[found]
        while number != found:  # the next search is short
            self._lower[number], number = found, self._lower[number]
        return found


def groups_of(count: int, pairs: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """The lowest number in each number's group: int64 (count,)."""
    groups = Groups()
    for first, second in pairs:
        groups.join(first, second)
    return np.array([groups.lowest(number) for number in range(count)], np.int64)
