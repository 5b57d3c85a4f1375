"""Oracle: a clock that the test sets."""

import math

import pytest

from onsight.deadline import Deadline, read_budget


class Clock:
    def __init__(self, now=10.0):
        self.now = now

    def __call__(self):
        return self.now


def test_budgets_are_read_with_their_units():
    assert [read_budget(text) for text in ("90s", "1.5m", "2h", "")] == [90, 90, 7200, math.inf]


def test_what_is_reserved_is_not_left_for_training():
    deadline = Deadline(79, Clock())
    deadline.reserve("closing", 9)
    deadline.reserve("evaluation", 5)
    assert deadline.remaining() == 79 - 10 - 14
    deadline.reserve("evaluation", 6)
    assert deadline.release("evaluation") == 6
    assert deadline.release("evaluation") == 0
    assert deadline.remaining() == 79 - 10 - 9


def test_a_part_may_take_longer_for_what_cannot_be_left_out():
    clock = Clock(0.0)
    part = Deadline(100, clock).part(0.4, essential_fraction=0.35)
    assert (part.remaining(), part.remaining_for_extras()) == pytest.approx((75, 40))
    clock.now += 50
    fold = part.part(0.5)
    assert (fold.remaining(), fold.remaining_for_extras()) == pytest.approx((12.5, 12.5 - 17.5))
    clock.now -= 50  # with all the time, what can be left out has its part in a fold, too
    fold = part.part(0.8)
    assert (fold.remaining(), fold.remaining_for_extras()) == pytest.approx((60, 32))
    assert Deadline().part(0.4, 0.35).remaining_for_extras() == math.inf


def test_each_training_gets_an_equal_part_of_the_time():
    clock = Clock()
    deadline = Deadline(79, clock)
    deadline.reserve("closing", 9)
    first = deadline.part(1 / 3)
    first.reserve("evaluation", 2)
    assert first.remaining() == pytest.approx(20 - 2)
    clock.now += 20
    assert deadline.part(1 / 2).remaining() == pytest.approx(20)


def test_what_an_interrupted_training_used_is_missing_from_the_whole():
    clock = Clock()
    deadline = Deadline(79, clock)
    first = deadline.part(1 / 3)
    first.count_earlier(5.0)
    assert first.remaining() == pytest.approx(23 - 5)
    assert first.elapsed() == 5
    assert deadline.remaining() == pytest.approx(69 - 5)


def test_a_clock_that_ran_on_counts_an_interrupted_run_by_itself():
    deadline = Deadline(60.0, Clock(20.0), keeps_running=True)
    deadline.part(0.5).count_earlier(5.0)
    assert deadline.elapsed() == 20.0


def test_without_a_budget_there_is_always_time():
    deadline = Deadline()
    deadline.reserve("closing", 9)
    assert not deadline.is_set
    assert deadline.remaining() == deadline.part(0.5).remaining() == math.inf
