"""Successive halving with candidates whose trials are known beforehand."""

from dataclasses import replace

import pytest

from onsight.errors import ModelError
from onsight.tune.auto.candidates import Candidate
from onsight.tune.auto.outlook import Outlook, Task
from onsight.tune.auto.race import more_time, run_race
from onsight.tune.auto.trials import Tried

TASK = Task(training=1000, others=300, seconds=60.0, classes=10, views=2, is_limited=True)
TRIED = Tried(right=80, judged=100, trained=300, seen=300, image_seconds=1e-3)


class Tries:
    """Makes candidates and notes for how many seconds each was tried."""

    def __init__(self):
        self.seconds = {}

    def candidate(self, name, error, kind="its weights", fails=False):
        def attempt(seconds):
            self.seconds.setdefault(name, []).append(seconds)
            if fails:
                raise ModelError("no network")
            return replace(TRIED, right=round(100 * (1 - error)))

        def outlook(tried, task):
            return Outlook(name, {"model": name}, (1 - tried.right / 100) * 60 / task.seconds, 500)

        return Candidate(name, kind != "scratch", attempt, outlook)


@pytest.fixture
def tries():
    return Tries()


def race_of(first, second=(), seconds=20.0):
    return run_race(list(first), list(second), seconds, lambda trials: TASK)


def test_a_clear_race_ends_after_one_round(tries):
    first = [tries.candidate("head", 0.1), tries.candidate("net", 0.4, "scratch")]
    race = race_of(first)
    assert tries.seconds == {"head": [5.0], "net": [5.0]}
    assert [one.name for one in race.outlooks] == ["head", "net"]


def test_what_is_in_question_is_tried_for_longer(tries):
    first = [tries.candidate("head", 0.2), tries.candidate("net", 0.21, "scratch")]
    race_of(first)
    assert [len(tries.seconds[name]) for name in ("head", "net")] == [2, 2]
    assert tries.seconds["net"][1] == pytest.approx(10, rel=0.01)


def test_larger_relatives_are_tried_where_a_head_leads(tries):
    first = [tries.candidate("head", 0.1), tries.candidate("net", 0.4, "scratch")]
    race = race_of(first, [tries.candidate("larger", 0.05)])
    assert [one.name for one in race.outlooks] == ["head", "larger", "net"]
    assert "larger" in race.evidence
    assert len(tries.seconds["net"]) == 1


def test_larger_relatives_are_not_tried_where_a_net_from_scratch_leads(tries):
    first = [tries.candidate("head", 0.4), tries.candidate("net", 0.1, "scratch")]
    race_of(first, [tries.candidate("larger", 0.05)])
    assert "larger" not in tries.seconds


def test_a_short_race_has_one_round(tries):
    first = [tries.candidate("head", 0.2), tries.candidate("net", 0.2, "scratch")]
    race_of(first, [tries.candidate("larger", 0.05)], seconds=3.0)
    assert all(len(seconds) == 1 for seconds in tries.seconds.values())


def test_a_relative_that_cannot_be_made_here_is_passed_over(tries):
    race = race_of([tries.candidate("head", 0.1)], [tries.candidate("larger", 0, fails=True)])
    assert [one.name for one in race.outlooks] == ["head"]


def test_more_time_is_told_only_where_it_helps(tries):
    race = race_of([tries.candidate("head", 0.1)])
    assert more_time(race, 5) == ["with 5 times the time, head: estimated accuracy 98.0%"]
    assert more_time(race, 1) == []
