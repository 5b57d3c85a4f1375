"""Pairs of classes that held-out images show to be hard, or impossible, to tell apart."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from onsight.evaluation.intervals import mean_share, wilson
from onsight.evaluation.results import ConfusedPair

_LEAST_IMAGES = 10  # of each class
_CLEARLY_BETTER = 0.75  # than guessing, which is 0.5
_GOOD = 0.95
_TIMES_EVEN = 3  # confusions, compared with mistakes that fall evenly on all pairs


def confused_pairs(confusion: NDArray[np.int64], names: Sequence[str]) -> list[ConfusedPair]:
    """The pairs that cannot be told apart or hardly, in this order, the worst first.

    confusion: counts (K, K), rows are labels. A pair is judged by its images that were predicted
    as either class: the mean of both recalls, of which guessing has one half. It cannot be told
    apart if the 95% interval includes one half, and one at a level that holds for all pairs
    together (Bonferroni) is below 75%. It is hard to tell apart if its share of the mistakes, at
    that level, is above 3 times an even share, and its interval below 95%.
    """
    classes, mistakes = len(names), int(confusion.sum() - confusion.trace())
    pairs = classes * (classes - 1) // 2
    both = confusion + confusion.T
    found = []
    for a, b in np.argwhere(np.triu(both, 1)).tolist():
        right = int(confusion[a, a]), int(confusion[b, b])
        counts = right[0] + int(confusion[a, b]), right[1] + int(confusion[b, a])
        if min(counts) < _LEAST_IMAGES:
            continue
        share, low, high = mean_share(list(zip(right, counts, strict=True)))
        wrong, strict = int(both[a, b]), NormalDist().inv_cdf(1 - 0.025 / pairs)
        upper = mean_share(list(zip(right, counts, strict=True)), strict)[2]
        unclear = low <= 0.5 and upper < _CLEARLY_BETTER
        frequent = wilson(wrong, mistakes, strict)[0] > _TIMES_EVEN / pairs
        if unclear or (frequent and high < _GOOD):
            found.append(
                ConfusedPair(
                    classes=(names[a], names[b]),
                    told_apart="no" if unclear else "hardly",
                    images=sum(counts),
                    accuracy=share,
                    accuracy_low=low,
                    accuracy_high=high,
                    mistakes=wrong,
                )
            )
    return sorted(found, key=lambda pair: (pair["told_apart"] != "no", pair["accuracy"]))
