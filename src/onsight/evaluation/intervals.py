"""Intervals of shares: Wilson's for one (JASA 22, 1927), and that of a mean of several."""

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


def mean_share(counted: Sequence[tuple[int, int]], z: float = Z_95) -> tuple[float, float, float]:
    """The plain mean of independent shares, each (successes, count > 0), with its interval.

    Its ends combine those of Wilson's intervals: Zou, Huang and Zhang, Computational Statistics
    and Data Analysis 53 (2009).
    """
    below = above = 0.0
    for successes, count in counted:
        low, high = wilson(successes, count, z)
        below += (successes / count - low) ** 2
        above += (high - successes / count) ** 2
    shares = len(counted)
    mean = sum(successes / count for successes, count in counted) / shares
    return mean, mean - math.sqrt(below) / shares, mean + math.sqrt(above) / shares
