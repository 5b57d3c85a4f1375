"""The interval of a ratio: Student's as scipy computes it, and how often it holds the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from onsight_explain.interval import Interval, ratio_interval


@pytest.mark.parametrize("rounds", [2, 3, 5, 12, 21])
def test_it_is_students_interval_of_the_logarithms(rounds):
    ratios = np.random.default_rng(rounds).lognormal(1.0, 0.2, rounds)
    logs = np.log(ratios)
    expected = stats.t.interval(0.95, rounds - 1, logs.mean(), stats.sem(logs))
    found = ratio_interval(ratios.tolist())
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(expected)), rel=1e-4)
    assert found.ratio == pytest.approx(stats.gmean(ratios))


def test_many_rounds_are_at_least_as_wide_as_students():
    logs = np.random.default_rng(0).normal(0, 0.1, 60)
    low, high = np.exp(stats.t.interval(0.95, 59, logs.mean(), stats.sem(logs)))
    found = ratio_interval(np.exp(logs).tolist())
    assert found.low <= low
    assert found.high >= high


def drifting(rng, rounds):
    """Rates of two ways on a machine that slows down and recovers, one pair after the other."""
    level, plain, changed = 0.0, [], []
    for number in range(rounds):
        order = (plain, changed) if number % 2 == 0 else (changed, plain)
        for rates in order:
            level = 0.8 * level + rng.normal(0, 0.1)
            rates.append(math.exp(level + rng.normal(0, 0.05)) * (3 if rates is changed else 1))
    return [one / other for one, other in zip(changed, plain, strict=True)]


@pytest.mark.parametrize("rounds", [3, 5, 8])
def test_the_truth_lies_in_it_in_19_of_20_cases(rounds):
    rng = np.random.default_rng(7)
    found = [ratio_interval(drifting(rng, rounds)) for _ in range(4000)]
    held = sum(one.low <= 3 <= one.high for one in found) / len(found)
    assert held > 0.935


def test_one_round_shows_nothing():
    alone = ratio_interval([5.0])
    assert (alone.low, alone.high) == (0.0, math.inf)
    assert alone.ratio == pytest.approx(5.0)
    assert not alone.is_shown
    with pytest.raises(ValueError, match="at least one round"):
        ratio_interval([])


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (Interval(5.13, 5.5, 6.04, 5), "at least 5.1 times as fast, 5.1 to 6.0, 5 rounds"),
        (Interval(1.234, 1.3, 1.41, 3), "at least 1.23 times as fast, 1.23 to 1.41, 3 rounds"),
        (Interval(98.7, 110.0, 127.2, 4), "at least 99 times as fast, 99 to 127, 4 rounds"),
        (Interval(0.92, 1.02, 1.12, 3), "0.92 to 1.12 times as fast, 3 rounds"),
        (Interval(0.0, 2.0, math.inf, 1), "unknown after a single round"),
    ],
)
def test_the_headline_is_the_lower_end(interval, words):
    assert str(interval) == words
