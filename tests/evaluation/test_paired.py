"""Oracles: scipy, published tables, the bootstrap, and how often the interval holds the truth."""

import numpy as np
import pytest
from scipy import stats

from onsight.evaluation.statistics import PairedCounts, difference_interval, holm, mcnemar

TABLES = [(754, 68, 34, 144), (36, 12, 2, 0), (0, 14, 0, 16), (5, 0, 1, 0), (9000, 700, 640, 50)]


def test_counts_equal_a_plain_loop():
    rng = np.random.default_rng(1)
    first, second = rng.random((2, 500)) < [[0.8], [0.7]]
    counts = PairedCounts.of(first, second)
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    cells = [(True, True), (True, False), (False, True), (False, False)]
    assert list(counts) == [pairs.count(cell) for cell in cells]
    assert counts.n == 500
    assert counts.difference == pytest.approx(first.mean() - second.mean())


@pytest.mark.parametrize("table", [*TABLES, (3, 0, 0, 4), (0, 7, 7, 0), (0, 60_000, 59_000, 0)])
def test_mcnemar_equals_the_exact_binomial_test(table):
    _, first, second, _ = table
    expected = stats.binomtest(first, first + second).pvalue if first + second else 1.0
    assert mcnemar(PairedCounts(*table)) == pytest.approx(expected, rel=1e-7)


def test_the_interval_of_a_published_table():
    # Fagerland, Lydersen, Laake, Statistics in Medicine 33, 2850 (2014), of Bentur et al.
    low, high = difference_interval(PairedCounts(1, 1, 7, 12))
    assert (round(low, 3), round(high, 3)) == (-0.507, -0.026)


@pytest.mark.parametrize("table", [(754, 68, 34, 144), (9000, 700, 640, 50)])
def test_the_interval_of_many_images_equals_the_bootstrap(table):
    counts = PairedCounts(*table)
    rng = np.random.default_rng(2)
    drawn = rng.multinomial(counts.n, np.array(table) / counts.n, 20_000)
    differences = (drawn[:, 1] - drawn[:, 2]) / counts.n
    low, high = difference_interval(counts)
    width = high - low
    assert np.quantile(differences, [0.025, 0.975]) == pytest.approx([low, high], abs=0.05 * width)


@pytest.mark.parametrize("shares", [(0.85, 0.08, 0.03, 0.04), (0.5, 0.1, 0.1, 0.3)])
def test_the_interval_holds_the_truth_as_often_as_it_says(shares):
    drawn = np.random.default_rng(3).multinomial(60, shares, 2_000)
    truth = shares[1] - shares[2]
    ends = [difference_interval(PairedCounts(*map(int, table))) for table in drawn]
    held = np.mean([low <= truth <= high for low, high in ends])
    assert 0.935 <= held <= 0.99


@pytest.mark.parametrize("table", TABLES)
def test_exchanging_the_two_changes_only_the_sign(table):
    both, first, second, wrong = table
    low, high = difference_interval(PairedCounts(*table))
    other = difference_interval(PairedCounts(both, second, first, wrong))
    assert other == pytest.approx((-high, -low), abs=1e-12)
    assert -1 <= low <= PairedCounts(*table).difference <= high <= 1


def test_holm_of_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []
