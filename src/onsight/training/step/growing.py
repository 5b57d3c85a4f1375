"""Times work on a few pictures first, and on more as long as there is time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_FEWEST = 2  # batch norm needs two
_GROWTH = 4


@dataclass(frozen=True)
class Timing:
    """Seconds of some work on a batch, by the number of its pictures."""

    seconds: dict[int, float]

    def at(self, pictures: int) -> float:
        """Seconds for a batch of this size: as timed, or in proportion to the next smaller one."""
        smaller = [size for size in self.seconds if size <= pictures]
        nearest = max(smaller) if smaller else min(self.seconds)
        return self.seconds[nearest] * pictures / nearest

    @property
    def per_picture(self) -> float:
        """Seconds for a picture of the largest batch that was timed."""
        largest = max(self.seconds)
        return self.seconds[largest] / largest

    def scaled(self, factor: float, ranks: int = 1) -> "Timing":
        """The same for work that takes factor times as long, on batches that ranks share."""
        return Timing({ranks * size: factor * one for size, one in self.seconds.items()})


def time_growing(timed: Callable[[int], float], most_pictures: int, most_seconds: float) -> Timing:
    """Time batches of 2, 8, 32 ... up to most_pictures, as long as the next is expected to fit.

    timed: does the work on so many pictures and returns its seconds. Each size is done twice, the
    first time to warm up. The smallest is always timed.
    """
    begun = time.perf_counter()
    size = min(_FEWEST, most_pictures)
    found: dict[int, float] = {}
    while True:
        timed(size)
        found[size] = timed(size)
        larger = min(_GROWTH * size, most_pictures)
        expected = 2 * found[size] * larger / size
        if larger == size or time.perf_counter() - begun + expected > most_seconds:
            return Timing(found)
        size = larger
