"""Measures how long work takes, including what is still queued on the device."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


def measure_seconds(work: Callable[[], object], threads: int, device: torch.device) -> float:
    """Return the seconds that work takes with some threads, waiting for the device at both ends."""
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


_SMALLEST_BATCH = 2  # batch norm needs two
_GROWTH_FACTOR = 4
_REPETITIONS = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of some work on a batch, by batch size."""

    seconds: dict[int, float]

    def at(self, images: int) -> float:
        """Return the seconds for a batch, in proportion to the next smaller size that was timed."""
        smaller = [size for size in self.seconds if size <= images]
        nearest = max(smaller) if smaller else min(self.seconds)
        return self.seconds[nearest] * images / nearest

    @property
    def per_image(self) -> float:
        """Seconds per image at the best batch size."""
        return min(seconds / size for size, seconds in self.seconds.items())

    def best(self, other: "Timing") -> "Timing":
        """Return the shorter of both times for each size."""
        both = [*self.seconds.items(), *other.seconds.items()]
        return Timing({n: min(s for size, s in both if size == n) for n, _ in both})

    def scaled(self, factor: float, ranks: int = 1) -> "Timing":
        """Return the times of work that takes `factor` times as long, on batches ranks share."""
        return Timing({ranks * size: factor * seconds for size, seconds in self.seconds.items()})


def time_batch_sizes(
    measure: Callable[[int], float],
    max_batch_size: int,
    max_seconds: float,
    smallest: int = _SMALLEST_BATCH,
) -> Timing:
    """Time batches of 2, 8, 32 ... images, as long as the next is expected to end in time.

    Each is timed up to three times, and the shortest time counts, as warming up and other processes
    only add to it. The first measurement may import half of torch, so it does not count towards
    `max_seconds`; a second one is always made.

    Args:
        measure: Works on a batch of this size and returns the seconds.
        max_seconds: For all measurements but the first.
        smallest: The first batch size, if it is not 2.
    """
    size = min(smallest, max_batch_size)
    warm_up = measure(size)
    end = time.perf_counter() + max_seconds
    seconds = {size: min(warm_up, _measure_shortest(measure, size, end))}
    growth = 1.0  # small batches cost only their overhead, above all on a busy machine
    while size < max_batch_size:
        larger = min(_GROWTH_FACTOR * size, max_batch_size)
        if time.perf_counter() + growth * seconds[size] > end:
            break
        seconds[larger] = _measure_shortest(measure, larger, end)
        growth = max(1.0, seconds[larger] / seconds[size])
        size = larger
    return Timing(seconds)


def _measure_shortest(measure: Callable[[int], float], size: int, end: float) -> float:
    shortest = measure(size)
    for _ in range(_REPETITIONS - 1):
        if time.perf_counter() >= end:
            break
        shortest = min(shortest, measure(size))
    return shortest
