"""Confidence intervals of proportions, and comparison of two classifiers on the same images.

z is the two-sided normal quantile of an interval's level, 95% by default.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution


def wilson(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """Return the confidence interval of a binomial proportion (E. B. Wilson, JASA 22, 1927).

    Args:
        count: The denominator. If it is 0, the interval is (0, 1).
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
    counts: Sequence[tuple[int, int]], z: float = Z_95
) -> tuple[float, float, float]:
    """Return the unweighted mean of independent proportions, and the ends of its interval.

    The interval is the normal one after adding z^2 trials, half of them successes, in equal parts
    to all proportions (Price and Bonett, Computational Statistics and Data Analysis 45, 2004).

    Args:
        counts: The successes and the positive count of each proportion.
    """
    groups = len(counts)
    mean = sum(successes / count for successes, count in counts) / groups
    trials = z * z / groups
    adjusted = [
        ((successes + trials / 2) / (count + trials), count + trials) for successes, count in counts
    ]
    centre = sum(p for p, _ in adjusted) / groups
    spread = z * math.sqrt(sum(p * (1 - p) / n for p, n in adjusted)) / groups
    return mean, max(0.0, min(mean, centre - spread)), min(1.0, max(mean, centre + spread))


def fold_interval_ratio(folds: int) -> float:
    """Return the factor by which cross-validation widens an interval.

    The models of the folds share most of their training images, and the final model is another
    one. According to Nadeau and Bengio (Machine Learning 52, 2003), the variance of the mean over k
    folds is that of independent images times 1 + k * (test images / training images), which is
    1 + k / (k - 1).
    """
    return math.sqrt(1 + folds / (folds - 1))


class PairedCounts(NamedTuple):
    """Counts of images by which of two classifiers was correct."""

    both_right: int  # images that both classified correctly
    only_first: int  # images that only the first classified correctly
    only_second: int  # images that only the second classified correctly
    both_wrong: int  # images that neither classified correctly

    @classmethod
    def of(cls, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> "PairedCounts":
        """Count images by flags (n,), which are True where a classifier was correct."""
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

    If both classifiers are equally accurate, an image that only one of them classifies correctly
    favours either with probability 1/2.
    """
    discordant = counts.only_first + counts.only_second
    smaller = min(counts.only_first, counts.only_second)
    if counts.only_first == counts.only_second:
        return 1.0
    scale = math.lgamma(discordant + 1) - discordant * math.log(2)
    tail = math.fsum(
        math.exp(scale - math.lgamma(k + 1) - math.lgamma(discordant - k + 1))
        for k in range(smaller + 1)
    )
    return min(1.0, 2 * tail)


def difference_interval(counts: PairedCounts) -> tuple[float, float]:
    """Return the 95% interval of the difference of two accuracies on the same images.

    Method 10 of Newcombe (Statistics in Medicine 17, 2635, 1998) combines Wilson's intervals of
    both accuracies according to their correlation.

    Args:
        counts: The counts of at least one image.
    """
    first = counts.both_right + counts.only_first
    second = counts.both_right + counts.only_second
    low_1, high_1 = wilson(first, counts.n)
    low_2, high_2 = wilson(second, counts.n)
    down_1, up_1 = first / counts.n - low_1, high_1 - first / counts.n
    down_2, up_2 = second / counts.n - low_2, high_2 - second / counts.n
    phi = _correlation(counts)
    below = math.sqrt(down_1**2 - 2 * phi * down_1 * up_2 + up_2**2)
    above = math.sqrt(up_1**2 - 2 * phi * up_1 * down_2 + down_2**2)
    return counts.difference - below, counts.difference + above


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple comparisons (Holm, Scand. J. Statist. 6, 1979)."""
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def _correlation(counts: PairedCounts) -> float:
    """Return phi with Newcombe's correction of positive values towards 0."""
    right, first, second, wrong = counts
    product: float = right * wrong - first * second
    if product > 0:
        product = max(product - counts.n / 2, 0)
    margins = (right + first) * (second + wrong) * (right + second) * (first + wrong)
    return product / math.sqrt(margins) if margins else 0.0
