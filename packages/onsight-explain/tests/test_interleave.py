"""Two ways measured in turns; the clock and the rates are planted."""

import pytest

from onsight_explain.interleave import Rounds


def test_who_begins_alternates_and_a_steady_drift_hardly_counts():
    moments, asked = iter(range(100)), []

    def way(name, rate):
        asked.append(name)
        return rate * (1 - 0.01 * next(moments))  # a machine that becomes slower

    rounds = Rounds()
    for _ in range(4):
        rounds.add(lambda: way("plain", 100.0), lambda: way("changed", 300.0))
    assert asked[:6] == ["plain", "changed", "changed", "plain", "plain", "changed"]
    assert rounds.interval.ratio == pytest.approx(3.0, rel=0.001)


def test_ratios_are_those_of_neighbours():
    """A machine that is suddenly ten times slower says nothing about the ratio."""
    rounds = Rounds([100.0, 10.0, 50.0], [200.0, 20.0, 100.0])
    assert rounds.interval.low == pytest.approx(2.0)
    assert rounds.interval.high == pytest.approx(2.0)
