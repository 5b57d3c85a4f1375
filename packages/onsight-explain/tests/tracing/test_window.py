"""Which steps are measured, in a training with a fake clock."""

import pytest

from onsight_explain.tracing import window as windows
from onsight_explain.tracing.window import Epoch, MeasurementWindow, WindowProgress


class Training:
    """Steps of one second each; an epoch has `length` of them."""

    def __init__(self, monkeypatch, length, **kwargs):
        self.now, self.steps, self.length = 0.0, 0, length
        monkeypatch.setattr(windows.time, "perf_counter", lambda: self.now)
        fields = {"seconds": 10.0, "steps": 1000, "warm_up_steps": 3} | kwargs
        self.window = MeasurementWindow(read_progress=self.read_progress, **fields)

    def read_progress(self):
        return WindowProgress(self.now, self.steps, 4 * self.steps, 0, {"other": self.now})

    def run(self):
        while not self.window.is_over:
            if self.steps % self.length == 0:
                self.window.on_epoch_start()
            self.now += 1
            self.steps += 1
            self.window.on_step_end(self.steps)
        return self.window.interval()


def test_a_part_of_a_long_epoch_after_the_warm_up(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=1000).run()
    assert (first.steps, last.steps, epochs) == (3, 13, 0)


def test_whole_epochs_if_they_are_short(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=4).run()
    assert (first.steps, last.steps, epochs) == (4, 12, 2)


def test_it_waits_for_the_end_of_the_only_whole_epoch(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=8).run()
    assert (first.steps, last.steps, epochs) == (8, 16, 1)


def test_it_does_not_wait_forever(monkeypatch):
    first, last, epochs = Training(monkeypatch, length=25, warm_up_steps=24).run()
    assert (first.steps, last.steps, epochs) == (24, 44, 0)


@pytest.mark.parametrize(("length", "seconds", "expected"), [(20, 3.0, 20), (4, 10.0, 12)])
def test_a_known_epoch_is_measured_from_anywhere_and_as_often_as_there_is_time_for(
    monkeypatch, length, seconds, expected
):
    epoch = Epoch(4 * length, 1.0 * length)
    training = Training(monkeypatch, length=length, seconds=seconds, steps=2, epoch=epoch)
    first, last, epochs = training.run()
    assert (first.steps, last.steps, epochs) == (3, 3 + expected, expected // length)


def test_the_first_of_several_evaluations_belongs_to_the_warm_up(monkeypatch):
    training = Training(monkeypatch, length=8, seconds=1.0, epoch=Epoch(32, 8.0, True))
    training.window.warm_up_epochs = 1
    first, last, _ = training.run()
    assert (first.steps, last.steps) == (9, 17)


def test_a_known_epoch_that_takes_far_longer_is_not_measured_to_its_end(monkeypatch):
    training = Training(monkeypatch, length=1000, seconds=1.0, epoch=Epoch(4000, 5.0))
    first, last, epochs = training.run()
    assert (last.steps - first.steps, epochs) == (15, 0)


def test_the_number_of_steps_is_limited(monkeypatch):
    first, last, _ = Training(monkeypatch, length=1000, steps=5).run()
    assert last.steps - first.steps == 5


def test_there_is_no_interval_before_enough_was_measured(monkeypatch):
    training = Training(monkeypatch, length=1000)
    for done in range(1, 4):
        training.window.on_step_end(done)
        assert training.window.interval() is None


@pytest.mark.parametrize("seconds", [0.2, 5.0])
def test_the_warm_up_lasts_a_while_even_if_steps_are_fast(monkeypatch, seconds):
    training = Training(monkeypatch, length=1000, warm_up_seconds=seconds)
    first, _, _ = training.run()
    assert first.steps == max(3, 1 + seconds // 1)


def test_steps_after_the_end_do_not_count(monkeypatch):
    training = Training(monkeypatch, length=1000)
    interval = training.run()
    training.now += 100
    training.window.on_step_end(training.steps + 1)
    training.window.on_epoch_start()
    assert training.window.interval() == interval
