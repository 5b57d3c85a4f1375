"""Paired timing: its interval against scipy, a bootstrap and simulated machines."""

import math

import numpy as np
import pytest
from scipy import stats

from onsight_explain.paired_timing import PairedRounds, RatioInterval, ratio_interval


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
    held = sum(interval.low <= 3 <= interval.high for interval in found) / len(found)
    assert held > 0.935


def test_one_round_shows_nothing():
    alone = ratio_interval([5.0])
    assert (alone.low, alone.high) == (0.0, math.inf)
    assert alone.ratio == pytest.approx(5.0)
    assert not alone.is_clear_gain
    with pytest.raises(ValueError, match="at least one round"):
        ratio_interval([])


@pytest.mark.parametrize(
    ("interval", "words"),
    [
        (RatioInterval(5.13, 5.5, 6.04, 5), "at least 5.1 times as fast, 5.1 to 6.0, 5 rounds"),
        (RatioInterval(1.234, 1.3, 1.41, 3), "at least 1.23 times as fast, 1.23 to 1.41, 3 rounds"),
        (RatioInterval(98.7, 110.0, 127.2, 4), "at least 99 times as fast, 99 to 127, 4 rounds"),
        (RatioInterval(0.92, 1.02, 1.12, 3), "0.92 to 1.12 times as fast, 3 rounds"),
        (RatioInterval(0.0, 2.0, math.inf, 1), "unknown after a single round"),
    ],
)
def test_the_headline_is_the_lower_end(interval, words):
    assert str(interval) == words


@pytest.mark.parametrize("rounds", [20, 60])
def test_it_agrees_with_a_bootstrap_of_many_rounds(rounds):
    """Another way to an interval of the geometric mean, which assumes nothing about the noise."""
    rng = np.random.default_rng(rounds)
    ratios = rng.lognormal(0.7, 0.2, rounds)
    samples = rng.choice(np.log(ratios), (20_000, rounds)).mean(axis=1)
    low, high = np.exp(np.quantile(samples, [0.025, 0.975]))
    interval = ratio_interval(ratios.tolist())
    assert interval.low == pytest.approx(low, rel=0.015)
    assert interval.high == pytest.approx(high, rel=0.015)


@pytest.mark.parametrize("rounds", [3, 5, 8])
def test_an_interval_by_order_statistics_of_the_median_covers_less(rounds):
    """Why it is Student's: of few rounds, the smallest and largest ratio are no 95% interval."""
    rng = np.random.default_rng(3)
    ratios = rng.lognormal(math.log(2), 0.1, (4000, rounds))
    between_extremes = np.mean((ratios.min(axis=1) <= 2) & (ratios.max(axis=1) >= 2))
    assert between_extremes == pytest.approx(1 - 2 * 0.5**rounds, abs=0.02)
    intervals = [ratio_interval(row) for row in ratios.tolist()]
    covered = np.mean([interval.low <= 2 <= interval.high for interval in intervals])
    assert covered == pytest.approx(0.95, abs=0.015)


def test_a_disturbed_round_moves_the_median_less_than_the_mean():
    rounds = PairedRounds([100.0] * 5, [200.0, 202.0, 198.0, 20.0, 201.0])
    assert rounds.median_ratio == pytest.approx(2.0)
    assert rounds.interval.ratio < 1.5


def test_who_begins_alternates_and_a_steady_drift_hardly_counts():
    moments, measured = iter(range(100)), []

    def measure(name, rate):
        measured.append(name)
        return rate * (1 - 0.01 * next(moments))  # a machine that becomes slower

    rounds = PairedRounds()
    for _ in range(4):
        rounds.measure(lambda: measure("baseline", 100.0), lambda: measure("changed", 300.0))
    assert measured[:4] == ["baseline", "changed", "changed", "baseline"]
    assert measured[4:6] == ["baseline", "changed"]
    assert rounds.interval.ratio == pytest.approx(3.0, rel=0.001)


def test_ratios_are_those_of_neighbours():
    """A machine that is suddenly ten times slower changes both rates, and not their ratio."""
    rounds = PairedRounds([100.0, 10.0, 50.0], [200.0, 20.0, 100.0])
    assert rounds.interval.low == pytest.approx(2.0)
    assert rounds.interval.high == pytest.approx(2.0)
