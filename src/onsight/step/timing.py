"""Times work, waiting for its device before and after."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


def measure_seconds(work: Callable[[], object], threads: int, device: torch.device) -> float:
    """Seconds of work in the given number of threads, waiting for its device at both ends."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _synchronize(device)
        begun = time.perf_counter()
        work()
        _synchronize(device)
        return time.perf_counter() - begun
    finally:
        torch.set_num_threads(former)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


_FEWEST = 2  # batch norm needs two
_GROWTH = 4
_TIMES = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of some work on a batch, by the number of its images."""

    seconds: dict[int, float]

    def at(self, images: int) -> float:
        """Seconds for a batch of this size: as timed, or in proportion to the next smaller one."""
        smaller = [size for size in self.seconds if size <= images]
        nearest = max(smaller) if smaller else min(self.seconds)
        return self.seconds[nearest] * images / nearest

    @property
    def per_image(self) -> float:
        """Seconds for an image in a batch of the best size."""
        return min(seconds / size for size, seconds in self.seconds.items())

    def best(self, other: "Timing") -> "Timing":
        """The shorter of both for each size."""
        both = [*self.seconds.items(), *other.seconds.items()]
        return Timing({n: min(s for size, s in both if size == n) for n, _ in both})

    def scaled(self, factor: float, ranks: int = 1) -> "Timing":
        """The same for work that takes factor times as long, on batches that ranks share."""
        return Timing({ranks * size: factor * one for size, one in self.seconds.items()})


def time_growing(timed: Callable[[int], float], most_images: int, most_seconds: float) -> Timing:
    """Time batches of 2, 8, 32 ... up to most_images, as long as the next is expected to fit.

    timed: does the work on so many images and returns its seconds. Each size is timed up to three
    times, until the time is over, and the shortest counts, as warming up and other processes only
    ever add. Only two times of the smallest are sure to be taken; the first, which may
    load half of torch, is not counted as time.
    """
    size = min(_FEWEST, most_images)
    warm_up = timed(size)
    until = time.perf_counter() + most_seconds
    found = {size: min(warm_up, _shortest(timed, size, until))}
    growth = float(_GROWTH)
    while size < most_images:
        larger = min(_GROWTH * size, most_images)
        expected = growth * found[size]
        if time.perf_counter() + expected > until:
            break
        found[larger] = _shortest(timed, larger, until)
        growth = max(1.0, found[larger] / found[size])  # small batches cost their overhead only
        size = larger
    return Timing(found)


def _shortest(timed: Callable[[int], float], size: int, until: float) -> float:
    shortest = timed(size)
    for _ in range(_TIMES - 1):
        if time.perf_counter() >= until:
            break
        shortest = min(shortest, timed(size))
    return shortest
