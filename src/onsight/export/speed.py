"""How fast two ways to classify are, measured in turns on the same images."""

import time
from statistics import median
from typing import NamedTuple

from onsight.data.pillow_pixels import Pixels
from onsight.export.format import Classify

_LEAST_SECONDS, _LEAST_ROUNDS, _MOST_ROUNDS = 2.0, 5, 200


class Speed(NamedTuple):
    """The median images per second of both, and how many times as fast the second one is.

    times: the median of the rounds' ratios; low, high: its quartiles; batch: images at once.
    """

    batch: int
    first_per_second: float
    second_per_second: float
    times: float
    low: float
    high: float


def compare_speed(first: Classify, second: Classify, images: Pixels) -> Speed:
    """Time both on images uint8 (B, H, W, C), round after round, in changing order."""
    for way in (first, second):
        way(images)  # the first call allocates
    rounds: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(rounds) < _LEAST_ROUNDS or (
        time.perf_counter() - begun < _LEAST_SECONDS and len(rounds) < _MOST_ROUNDS
    ):
        if len(rounds) % 2:
            rounds.append((_seconds(first, images), _seconds(second, images)))
        else:
            after = _seconds(second, images)
            rounds.append((_seconds(first, images), after))
    ratios = sorted(one / other for one, other in rounds)
    quarter = len(ratios) // 4
    return Speed(
        len(images),
        len(images) / median(one for one, _ in rounds),
        len(images) / median(other for _, other in rounds),
        median(ratios),
        ratios[quarter],
        ratios[-1 - quarter],
    )


def _seconds(way: Classify, images: Pixels) -> float:
    begun = time.perf_counter()
    way(images)
    return time.perf_counter() - begun
