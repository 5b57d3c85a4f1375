"""Two classifiers on the same images: how far apart they are, and whether that is noise.

Only images that one of them got right and the other wrong tell them apart.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onsight.evaluation.intervals import Z_95, wilson


class PairedCounts(NamedTuple):
    """How many of the same images two classifiers got right."""

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int

    @classmethod
    def of(cls, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> "PairedCounts":
        """Counted from whether each image was classified right. first, second: bool (n,)."""
        both, either = int((first & second).sum()), int((first | second).sum())
        return cls(both, int(first.sum()) - both, int(second.sum()) - both, len(first) - either)

    @property
    def n(self) -> int:
        """How many images there are."""
        return sum(self)

    @property
    def difference(self) -> float:
        """The first accuracy minus the second."""
        return (self.only_first - self.only_second) / self.n


def mcnemar(counts: PairedCounts) -> float:
    """The exact two-sided p-value of McNemar's test (Psychometrika 12, 1947).

    If both were equally accurate, each image that tells them apart would favour either with
    probability 1/2.
    """
    apart = counts.only_first + counts.only_second
    fewer = min(counts.only_first, counts.only_second)
    if counts.only_first == counts.only_second:
        return 1.0
    scale = math.lgamma(apart + 1) - apart * math.log(2)
    tail = math.fsum(
        math.exp(scale - math.lgamma(k + 1) - math.lgamma(apart - k + 1)) for k in range(fewer + 1)
    )
    return min(1.0, 2 * tail)


def difference_interval(counts: PairedCounts, z: float = Z_95) -> tuple[float, float]:
    """The interval of the difference of two accuracies on the same images, at 95% by default.

    Method 10 of Newcombe, Statistics in Medicine 17, 2635 (1998): Wilson's intervals of both
    accuracies, combined by the correlation of the two. Needs n above 0.
    """
    first = counts.both_right + counts.only_first
    second = counts.both_right + counts.only_second
    low_1, high_1 = wilson(first, counts.n, z)
    low_2, high_2 = wilson(second, counts.n, z)
    down_1, up_1 = first / counts.n - low_1, high_1 - first / counts.n
    down_2, up_2 = second / counts.n - low_2, high_2 - second / counts.n
    phi = _correlation(counts)
    below = math.sqrt(down_1**2 - 2 * phi * down_1 * up_2 + up_2**2)
    above = math.sqrt(up_1**2 - 2 * phi * up_1 * down_2 + down_2**2)
    return counts.difference - below, counts.difference + above


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's method (Scand. J. Statist. 6, 1979)."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def _correlation(counts: PairedCounts) -> float:
    """phi with Newcombe's correction towards 0, which only a positive one gets."""
    right, first, second, wrong = counts
    product: float = right * wrong - first * second
    if product > 0:
        product = max(product - counts.n / 2, 0)
    margins = (right + first) * (second + wrong) * (right + second) * (first + wrong)
    return product / math.sqrt(margins) if margins else 0.0
