"""Which changes are combined, proven and left out; a bench's speeds and the clock are planted."""

import time
from dataclasses import dataclass

import pytest

from onsight_explain.console import StderrMessages
from onsight_explain.search import Search, TrialFailed


@dataclass(frozen=True)
class Planted:
    """A change of a group."""

    label: str
    group: str = ""


class PlantedTrial:
    def __init__(self, bench, changes):
        self.bench, self.changes = bench, changes
        self.is_open, self.windows = False, 0

    def measure(self, seconds):
        return self.bench.rate(self, seconds)

    def losses(self):
        return "same"

    def notes(self):
        return []

    def close(self):
        self.is_open = False


class PlantedBench:
    """100 images/s, times the factor of every change.

    fails, unsteady: labels; swing: of what is unsteady; noise: a factor by the number of windows.
    """

    def __init__(
        self,
        now,
        factors,
        fails=(),
        unsteady="",
        swing=0.2,
        most=float("inf"),
        noise=lambda number: 1.0,
        second_start=1.0,
        opening_seconds=1.0,
    ):
        self.now, self.factors, self.fails, self.most = now, factors, fails, most
        self.unsteady, self.swing, self.noise = unsteady, swing, noise
        self.opening_seconds = opening_seconds
        self.second_start = second_start  # speed of the second trial without changes
        self.windows, self.asked, self.later = 0, [], []
        self.trials = []

    def open(self, changes):
        self.asked.append({change.label for change in changes})
        self.trials.append(PlantedTrial(self, changes))
        return self.trials[-1]

    def candidates(self, trial):
        return self.later

    def rate(self, trial, seconds):
        if set(self.fails) & {change.label for change in trial.changes}:
            raise TrialFailed("planted")
        self.now[0] += seconds + (0.0 if trial.is_open else self.opening_seconds)
        trial.is_open = True
        rate = 100.0
        for change in trial.changes:
            rate *= self.factors[change.label]
            if change.label == self.unsteady:
                rate *= 1 - self.swing if trial.windows % 2 else 1 + self.swing
        if not trial.changes and trial is not self.trials[0]:
            if self.second_start == "fails":
                raise TrialFailed("planted")
            rate *= self.second_start
        trial.windows += 1
        self.windows += 1
        return min(rate, 100 * self.most) * self.noise(self.windows)


@pytest.fixture
def run(monkeypatch):
    """Races changes by label for so many seconds; groups: those that share one; later: suggested
    once something was found."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def race(factors, seconds=60.0, groups=(), later=(), kept=0.0, **facts):
        bench = PlantedBench(now, factors, **facts)
        group = {label: "shared" if label in groups else label for label in factors}
        bench.later = [Planted(label, group[label]) for label in later]
        wanted = [Planted(label, group[label]) for label in factors if label not in later]
        plain = bench.open(())
        found = Search(bench, plain, seconds, 0.5, StderrMessages(), kept).run(wanted)
        return bench, found

    return race


def test_the_best_changes_are_combined_and_proven(run):
    _, found = run({"a": 1.5, "b": 2.0, "c": 1.01})
    assert [result.ratio for result in found.results] == pytest.approx([1.5, 2.0, 1.01])
    assert found.best.name == "b + a"
    assert found.best.low == pytest.approx(3.0)
    assert found.best.interval.rounds >= 3
    assert set(found.baseline_rates) == {100.0}


def test_the_trial_of_a_combination_that_was_replaced_is_closed(run):
    bench, found = run({"a": 2.0, "b": 1.8, "c": 1.6})
    assert found.best.name == "a + b + c"
    still_open = [
        {change.label for change in trial.changes} for trial in bench.trials if trial.is_open
    ]
    assert {"a", "b", "c"} in still_open
    assert {"a", "b"} not in still_open
    assert {"a"} not in still_open


@pytest.mark.parametrize(("opening_seconds", "seconds"), [(1, 30), (2.5, 45), (3, 45), (4, 60)])
def test_there_is_time_for_a_combination_where_scripts_start_slowly(run, opening_seconds, seconds):
    factors = {"a": 2.0, "b": 2.0, "c": 1.5, "d": 1.2, "e": 1.0, "f": 1.0, "g": 1.0}
    _, found = run(factors, seconds, opening_seconds=opening_seconds)
    assert {change.label for change in found.best.changes} >= {"a", "b"}


def test_only_one_of_a_group_is_taken(run):
    bench, found = run({"a": 1.5, "b": 3.0}, groups="ab")
    assert found.best.name == "b"
    assert {"a", "b"} not in bench.asked


def test_a_change_that_adds_nothing_is_left_out(run):
    assert run({"a": 1.5, "b": 2.0}, most=2.0)[1].best.name == "b"


def test_what_gains_only_beside_another_is_found(run):
    assert run({"a": 2.0, "b": 1.4}, later="b")[1].best.name == "a + b"


def test_a_failing_change_is_told_and_the_others_continue(run):
    _, found = run({"a": 1.0, "b": 1.5}, fails="a")
    assert found.results[0].problem == "planted"
    assert found.results[0].interval is None
    assert found.best.name == "b"


def test_without_a_gain_there_is_no_best(run):
    _, found = run({"a": 1.01, "b": 0.5})
    assert found.best is None
    assert [result.interval.rounds for result in found.results] == [1, 1]  # the hopeless end early


def test_where_noise_may_hide_a_gain_changes_get_more_rounds(run):
    """A second process of the same script is 1.4 times as fast as the first, or as slow."""
    for second_start in (1.4, 1 / 1.4):
        _, found = run({"a": 1.01, "b": 0.9, "c": 0.5}, second_start=second_start)
        assert [result.interval.rounds for result in found.results] == [3, 3, 1]


def test_what_there_is_no_time_for_is_named_and_the_winner_is_still_proven(run):
    factors = {str(number): 1.2 for number in range(20)}
    _, found = run(factors, seconds=20.0, groups=factors)
    assert 3 < len(found.results) < 12
    assert [change.label for change in found.skipped] == [
        str(n) for n in range(len(found.results), 20)
    ]
    assert found.best.interval.rounds >= 3


def test_it_ends_in_time_although_the_winner_is_proven(run):
    """Without time kept for its three rounds, single changes would be settled meanwhile."""
    factors = {str(number): 1.2 for number in range(20)}
    bench, found = run(factors, seconds=10.0, groups=factors)
    assert found.best.interval.rounds >= 3
    assert bench.now[0] <= 10.0


def test_without_a_gain_all_the_time_goes_to_single_changes(run):
    factors = {str(number): 1.0 for number in range(40)}
    bench, found = run(factors, seconds=20.0)
    assert bench.now[0] > 17.0
    assert found.best is None


def test_what_is_kept_for_later_is_used_up_only_without_a_gain(run):
    factors = {str(number): 1.2 for number in range(40)}
    bench, _ = run(factors, seconds=20.0, groups=factors, kept=10.0)
    assert bench.now[0] <= 11.0
    begun = bench.now[0]
    bench, _ = run(dict.fromkeys(factors, 1.0), seconds=20.0, kept=10.0)
    assert bench.now[0] - begun > 17.0


def test_a_recent_rate_of_the_unchanged_training_serves_several_single_changes(run):
    factors = {str(number): 1.0 for number in range(6)}
    _, found = run(factors)
    assert len(found.results) == 6
    assert len(found.baseline_rates) - len(found.control) < 6


def test_a_stalled_window_is_measured_again(run):
    """Another process takes the machine for one window, in which all is ten times slower."""
    _, found = run({"a": 1.01, "b": 1.02, "c": 1.5}, noise=lambda n: 0.1 if n == 8 else 1.0)
    assert found.best.name == "c"
    assert found.best.low == pytest.approx(1.5)


@pytest.mark.parametrize("stalled", range(6, 30))
def test_a_stalled_baseline_is_not_reused(run, stalled):
    factors = {str(change): 1.0 for change in range(12)}
    _, found = run(factors, noise=lambda window: 0.2 if window == stalled else 1.0)
    assert set(found.baseline_rates) == {100.0}
    assert all(result.interval.ratio <= 1.0 for result in found.results if result.interval)


def test_a_surer_single_change_that_gained_less_does_not_replace_the_winner(run):
    _, found = run({"a": 3.0, "b": 2.5}, groups="ab", unsteady="a")
    assert found.best.low < next(result.low for result in found.results if result.name == "b")
    assert found.best.name == "a"


def test_a_surer_single_change_replaces_a_winner_that_is_not_shown(run):
    _, found = run({"a": 3.0, "b": 2.5}, groups="ab", unsteady="a", swing=0.6)
    assert found.best.name == "b"


def test_noise_alone_is_not_shown_to_be_a_gain(run):
    rates = [1.0, 1.4, 0.8, 1.1, 1.3, 0.9, 0.7, 1.2]
    _, found = run({"a": 1.0, "b": 1.0}, noise=lambda n: rates[n % 8])
    assert found.best is None or not found.best.interval.is_clear_gain


def test_gains_within_the_difference_of_two_equal_trainings_are_not_shown(run):
    """A second process of the same script is 1.4 times as fast as the first."""
    _, found = run({"a": 1.3}, second_start=1.4)
    assert found.control == pytest.approx([1.4, 1.4, 1.4])
    assert found.min_gain == pytest.approx(1.4)
    assert not found.best.interval.is_clear_gain
    assert run({"a": 1.5}, second_start=1.4)[1].best.interval.is_clear_gain
    assert run({"a": 1.3}, second_start=1 / 1.4)[1].min_gain == pytest.approx(1.4)
    assert run({"a": 1.3})[1].best.interval.is_clear_gain


def test_without_a_control_the_usual_gain_counts(run):
    """A script that cannot run twice at once, such as one that listens on a port."""
    _, found = run({"a": 1.3}, second_start="fails")
    assert (found.control, found.min_gain) == ([], 1.1)
    assert found.best.interval.is_clear_gain


def test_the_control_takes_one_round_where_three_are_long(run):
    """Three of a second are more than 0.15 of 15 s."""
    assert len(run({"a": 1.5}, seconds=15.0)[1].control) == 1
    assert len(run({"a": 1.5}, seconds=60.0)[1].control) == 3


def test_the_control_ends_with_the_time(run):
    """Each start takes half a minute; one round is always measured."""
    assert len(run({"a": 1.0}, seconds=20.0, opening_seconds=30.0)[1].control) == 1
