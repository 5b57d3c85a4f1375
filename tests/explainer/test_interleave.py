"""Two ways measured in turns; the clock and the rates are planted."""

import time

import pytest

from onsight.explainer.interleave import Rounds, interleave


@pytest.fixture
def ways(monkeypatch):
    """Two ways that take 2 s and 1 s for a measurement, and a list of what was measured."""
    now, asked = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def way(name, seconds, rate):
        def measure():
            now[0] += seconds
            asked.append(name)
            return rate * (1 - 0.01 * now[0])  # a machine that becomes slower

        return measure

    return way("plain", 2.0, 100.0), way("changed", 1.0, 300.0), asked


def test_who_begins_alternates(ways):
    plain, changed, asked = ways
    interleave(plain, changed, 3)
    assert asked == ["plain", "changed", "changed", "plain", "plain", "changed"]


def test_a_steady_drift_hardly_counts(ways):
    plain, changed, _ = ways
    assert interleave(plain, changed, 4).interval.ratio == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(("limit", "rounds"), [(0.0, 1), (6.0, 2), (8.9, 2), (9.0, 3), (99.0, 5)])
def test_a_round_that_would_end_too_late_is_not_begun(ways, limit, rounds):
    plain, changed, _ = ways
    assert interleave(plain, changed, 5, limit).interval.rounds == rounds


def test_ratios_are_those_of_neighbours():
    """A machine that is suddenly ten times slower says nothing about the ratio."""
    rounds = Rounds([100.0, 10.0, 50.0], [200.0, 20.0, 100.0])
    assert rounds.interval.low == pytest.approx(2.0)
    assert rounds.interval.high == pytest.approx(2.0)
