"""Oracle: the interval's promise, counted over drawn data."""

import numpy as np
import pytest

from onsight.evaluation.statistics import fold_interval_ratio, mean_proportion


def test_one_share_has_the_interval_of_agresti_and_coull():
    share, n = (81 + 1.959964**2 / 2) / (263 + 1.959964**2), 263 + 1.959964**2
    half = 1.959964 * (share * (1 - share) / n) ** 0.5
    assert mean_proportion([(81, 263)]) == pytest.approx((81 / 263, share - half, share + half))


@pytest.mark.parametrize(
    "truth", [[(0.9, 1000), (0.3, 20)], [(0.5, 10)] * 5, [(0.98, 12)] * 20, [(0.8, 40), (0.6, 200)]]
)
def test_the_interval_of_a_mean_covers_it_as_often_as_promised(truth):
    rng = np.random.default_rng(0)
    target = np.mean([share for share, _ in truth])
    hits = 0
    for _ in range(2000):
        _, low, high = mean_proportion([(int(rng.binomial(n, share)), n) for share, n in truth])
        hits += low <= target <= high
    assert 0.925 < hits / 2000 <= 0.999


def test_the_ends_stay_within_0_and_1():
    assert mean_proportion([(10, 10), (7, 7)])[2] == 1.0
    assert mean_proportion([(0, 10), (0, 7)])[1] == 0.0


@pytest.mark.parametrize("folds", [2, 5])
def test_folds_are_widened_by_the_correction_of_nadeau_and_bengio(folds):
    learned, tested = 1 - 1 / folds, 1 / folds
    corrected, plain = 1 / folds + tested / learned, 1 / folds
    assert fold_interval_ratio(folds) == pytest.approx((corrected / plain) ** 0.5)
