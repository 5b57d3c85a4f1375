"""How fast two ways to classify are, measured in turns on the same pictures."""

import time
from statistics import median
from typing import NamedTuple

from onsight.data.pillow_pixels import Pixels
from onsight.export.format import Classify

_LEAST_SECONDS, _LEAST_ROUNDS, _MOST_ROUNDS = 2.0, 5, 200


class Speed(NamedTuple):
    """The median pictures per second of both, and how many times as fast the second one is.

    times: the median of the rounds' ratios; low, high: its quartiles; batch: pictures at once.
    """

    batch: int
    first_per_second: float
    second_per_second: float
    times: float
    low: float
    high: float


def compare_speed(first: Classify, second: Classify, pictures: Pixels) -> Speed:
    """Time both on pictures uint8 (B, H, W, C), round after round, in changing order."""
    for way in (first, second):
        way(pictures)  # the first call allocates
    rounds: list[tuple[float, float]] = []
    begun = time.perf_counter()
    while len(rounds) < _LEAST_ROUNDS or (
        time.perf_counter() - begun < _LEAST_SECONDS and len(rounds) < _MOST_ROUNDS
    ):
        if len(rounds) % 2:
            rounds.append((_seconds(first, pictures), _seconds(second, pictures)))
        else:
            after = _seconds(second, pictures)
            rounds.append((_seconds(first, pictures), after))
    ratios = sorted(one / other for one, other in rounds)
    quarter = len(ratios) // 4
    return Speed(
        len(pictures),
        len(pictures) / median(one for one, _ in rounds),
        len(pictures) / median(other for _, other in rounds),
        median(ratios),
        ratios[quarter],
        ratios[-1 - quarter],
    )


def _seconds(way: Classify, pictures: Pixels) -> float:
    begun = time.perf_counter()
    way(pictures)
    return time.perf_counter() - begun
