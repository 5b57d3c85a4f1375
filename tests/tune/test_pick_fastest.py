"""Oracle: candidates with made-up times."""

from itertools import cycle, repeat

import pytest

from onsight.tune import probe as pick_fastest_module
from onsight.tune.probe import TimedOptions, pick_fastest, pick_from_timed


def candidate(name, seconds, visits=None):
    times = cycle(seconds) if isinstance(seconds, list) else repeat(seconds)

    def visit():
        if visits is not None:
            visits.append(name)
        return next(times)

    return TimedOptions(name, visit)


def test_the_fastest_wins_when_it_is_clearly_faster():
    assert (
        pick_fastest(
            [candidate("plain", 1.0), candidate("fast", 0.9), candidate("slow", 2.0)], 60
        ).options
        == "fast"
    )


def test_a_negligible_lead_goes_to_the_simpler_one():
    assert pick_fastest([candidate("plain", 1.0), candidate("fast", 0.98)], 60).options == "plain"


def test_a_lead_that_comes_and_goes_is_noise():
    steady, wild = candidate("plain", 1.0), candidate("wild", [0.7, 1.5, 0.94, 1.4, 0.9, 1.3, 0.95])
    assert pick_fastest([steady, wild], 60).options == "plain"
    noisy_but_better = [0.7, 0.9, 0.8, 0.85, 1.2, 0.75, 0.8, 0.9, 0.85]
    assert (
        pick_fastest([candidate("plain", 1.0), candidate("better", noisy_but_better)], 60).options
        == "better"
    )


def test_hopeless_candidates_are_not_timed_again():
    visits = []
    pick_fastest(
        [
            candidate("plain", 1.0, visits),
            candidate("slow", 3.0, visits),
            candidate("fast", 0.9, visits),
        ],
        60,
    )
    assert visits.count("slow") == 1
    assert visits.count("fast") == visits.count("plain") == pick_fastest_module._ROUNDS


def test_the_losers_are_named_as_soon_as_they_lost():
    visits, lost = [], []
    candidates = [candidate("plain", 1.0, visits), candidate("slow", 3.0, visits)]
    candidates += [candidate("fast", 0.9, visits)]
    pick_fastest(candidates, 60, on_drop=lambda name: lost.append((name, len(visits))))
    assert lost == [("slow", 3)]


def test_when_the_time_is_up_only_timed_candidates_take_part(monkeypatch):
    now = iter(range(100))
    monkeypatch.setattr(pick_fastest_module.time, "perf_counter", lambda: next(now))
    visits = []
    winner = pick_fastest([candidate("plain", 1.0, visits), candidate("fast", 0.5, visits)], 0.4)
    assert (winner.options, visits) == ("plain", ["plain"])


def test_a_refused_candidate_never_wins():
    assert (
        pick_fastest([candidate("plain", 1.0), candidate("refused", float("inf"))], 60).options
        == "plain"
    )


@pytest.mark.parametrize("rounds", [1, 2])
def test_with_few_rounds_the_median_decides(rounds):
    slow, fast = (
        TimedOptions("plain", lambda: 0, [1.0] * rounds),
        TimedOptions("fast", lambda: 0, [0.8] * rounds),
    )
    assert pick_from_timed([slow, fast]).options == "fast"
