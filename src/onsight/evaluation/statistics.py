"""Confidence intervals of proportions, and two classifiers compared on the same images."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution


def wilson(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """Return the confidence interval of a binomial proportion; (0, 1) if count is 0.

    z: two-sided normal quantile of the level, 95% by default.

    E. B. Wilson, JASA 22 (1927).
    """
    if count == 0:
        return 0.0, 1.0
    proportion = successes / count
    centre = proportion + z * z / (2 * count)
    spread = z * math.sqrt(proportion * (1 - proportion) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == count else (centre + spread) / scale
    return low, high


def mean_proportion(
    counted: Sequence[tuple[int, int]], z: float = Z_95
) -> tuple[float, float, float]:
    """Return the unweighted mean of independent proportions, and the ends of its interval.

    counted: (successes, count > 0) of each proportion. The interval is the normal one after z^2
    trials, half of them successes, were added to all proportions together: Price and Bonett,
    Computational Statistics and Data Analysis 45 (2004).
    """
    groups = len(counted)
    mean = sum(successes / count for successes, count in counted) / groups
    trials = z * z / groups
    adjusted = [
        ((successes + trials / 2) / (count + trials), count + trials)
        for successes, count in counted
    ]
    centre = sum(p for p, _ in adjusted) / groups
    spread = z * math.sqrt(sum(p * (1 - p) / n for p, n in adjusted)) / groups
    return mean, max(0.0, min(mean, centre - spread)), min(1.0, max(mean, centre + spread))


def fold_interval_ratio(folds: int) -> float:
    """Return how much wider an interval is if the images were evaluated by cross-validation.

    The models of the folds share most of their training images, and the final model is none of
    them. Nadeau and Bengio, Machine Learning 52 (2003): the variance of the mean over k folds is
    that of independent images times 1 + k * (test images / training images) = 1 + k / (k - 1).
    """
    return math.sqrt(1 + folds / (folds - 1))


class PairedCounts(NamedTuple):
    """How many of the same images two classifiers got right.

    Only images that one of them got right and the other wrong show a difference.
    """

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int

    @classmethod
    def of(cls, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> "PairedCounts":
        """Count images, from flags (n,) that are True where a classifier was right."""
        both, either = int((first & second).sum()), int((first | second).sum())
        return cls(both, int(first.sum()) - both, int(second.sum()) - both, len(first) - either)

    @property
    def n(self) -> int:
        """The number of images."""
        return sum(self)

    @property
    def difference(self) -> float:
        """The first accuracy minus the second."""
        return (self.only_first - self.only_second) / self.n


def mcnemar(counts: PairedCounts) -> float:
    """Return the exact two-sided p-value of McNemar's test (Psychometrika 12, 1947).

    If both classifiers are equally accurate, each image that only one got right favours either
    with probability 1/2.
    """
    discordant = counts.only_first + counts.only_second
    fewer = min(counts.only_first, counts.only_second)
    if counts.only_first == counts.only_second:
        return 1.0
    scale = math.lgamma(discordant + 1) - discordant * math.log(2)
    tail = math.fsum(
        math.exp(scale - math.lgamma(k + 1) - math.lgamma(discordant - k + 1))
        for k in range(fewer + 1)
    )
    return min(1.0, 2 * tail)


def difference_interval(counts: PairedCounts, z: float = Z_95) -> tuple[float, float]:
    """Return the interval of the difference of two accuracies on the same n > 0 images.

    At 95% by default. Method 10 of Newcombe, Statistics in Medicine 17, 2635 (1998): Wilson's
    intervals of both accuracies, combined by the correlation of the two.
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
    """Return p-values adjusted for multiple comparisons.

    Holm's method (Scand. J. Statist. 6, 1979).
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def _correlation(counts: PairedCounts) -> float:
    """Return phi with Newcombe's correction towards 0, which applies to positive values only."""
    right, first, second, wrong = counts
    product: float = right * wrong - first * second
    if product > 0:
        product = max(product - counts.n / 2, 0)
    margins = (right + first) * (second + wrong) * (right + second) * (first + wrong)
    return product / math.sqrt(margins) if margins else 0.0
