"""Intervals of shares: Wilson's for one (JASA 22, 1927), and that of the mean of several."""

import math
from collections.abc import Sequence

Z_95 = 1.959963984540054


def wilson(successes: int, count: int, z: float = Z_95) -> tuple[float, float]:
    """The interval of a binomial share, at 95% by default; (0, 1) if count is 0."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low = 0.0 if successes == 0 else (centre - spread) / scale
    high = 1.0 if successes == count else (centre + spread) / scale
    return low, high


def folds_wider(folds: int) -> float:
    """How many times as wide an interval is if models of folds judged the images.

    They share most of what they learned from, and the model that is kept is none of them. Nadeau
    and Bengio, Machine Learning 52 (2003): the variance of the mean over k folds is that of
    independent images times 1 + k * (images judged / learned from), here 1 + k / (k - 1).
    """
    return math.sqrt(1 + folds / (folds - 1))


def mean_share(counted: Sequence[tuple[int, int]], z: float = Z_95) -> tuple[float, float, float]:
    """The plain mean of independent shares, each (successes, count > 0), with its interval.

    Price and Bonett, Computational Statistics and Data Analysis 45 (2004): the normal interval
    after z^2 trials, half of them successes, were added to all the shares together.
    """
    shares = len(counted)
    mean = sum(successes / count for successes, count in counted) / shares
    trials = z * z / shares
    adjusted = [
        ((successes + trials / 2) / (count + trials), count + trials)
        for successes, count in counted
    ]
    centre = sum(share for share, _ in adjusted) / shares
    spread = z * math.sqrt(sum(share * (1 - share) / n for share, n in adjusted)) / shares
    return mean, max(0.0, min(mean, centre - spread)), min(1.0, max(mean, centre + spread))
