"""Which steps are measured, on a training whose clock is a list."""

import pytest

from onsight.explain.tracing import window as windows
from onsight.explain.tracing.window import Snapshot, Window


class Training:
    """Steps of a second each, an epoch every `length` of them."""

    def __init__(self, monkeypatch, length, **kwargs):
        self.now, self.steps, self.length = 0.0, 0, length
        monkeypatch.setattr(windows.time, "perf_counter", lambda: self.now)
        fields = {"seconds": 10.0, "steps": 1000, "warm_up_steps": 3} | kwargs
        self.window = Window(look=self.look, **fields)

    def look(self):
        return Snapshot(self.now, self.steps, 4 * self.steps, 0, {"other": self.now})

    def run(self):
        while not self.window.is_over:
            if self.steps % self.length == 0:
                self.window.epoch()
            self.now += 1
            self.steps += 1
            self.window.step(self.steps)
        return self.window.stretch()


def test_part_of_a_long_epoch_after_warming_up(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=1000).run()
    assert (first.steps, last.steps, epochs) == (3, 13, 0)


def test_whole_epochs_where_they_are_short(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=4).run()
    assert (first.steps, last.steps, epochs) == (4, 12, 2)


def test_it_waits_for_the_end_of_the_only_whole_epoch(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=8).run()
    assert (first.steps, last.steps, epochs) == (8, 16, 1)


def test_it_does_not_wait_for_ever(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=25, warm_up_steps=24).run()
    assert (first.steps, last.steps, epochs) == (24, 44, 0)


def test_so_many_steps_at_most(monkeypatch):
    first, last, _ = Training(monkeypatch, length=1000, steps=5).run()
    assert last.steps - first.steps == 5


def test_nothing_is_told_before_enough_was_seen(monkeypatch):
    training = Training(monkeypatch, length=1000)
    for done in range(1, 4):
        training.window.step(done)
        assert training.window.stretch() is None


@pytest.mark.parametrize("seconds", [0.2, 5.0])
def test_warming_up_takes_a_while_even_for_quick_steps(monkeypatch, seconds):
    training = Training(monkeypatch, length=1000, warm_up_seconds=seconds)
    first, _, _ = training.run()
    assert first.steps == max(3, 1 + seconds // 1)


def test_what_comes_after_the_end_does_not_count(monkeypatch):
    training = Training(monkeypatch, length=1000)
    stretch = training.run()
    training.now += 100
    training.window.step(training.steps + 1)
    training.window.epoch()
    assert training.window.stretch() == stretch
