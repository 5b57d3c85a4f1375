"""Phases on an accelerator's timeline, with fakes of torch's events and accelerator."""

import pytest
import torch

from onsight.explain.tracing.devicetime import DeviceTime


class Timeline:
    """An accelerator that lags `behind` the host: events happen when it reaches them."""

    def __init__(self):
        self.milliseconds = 0.0


@pytest.fixture
def timeline(monkeypatch):
    line = Timeline()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = line.milliseconds

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    return line


def test_only_every_fourth_step_is_marked_and_each_stretch_has_its_phase(timeline):
    device_time = DeviceTime()
    for done in range(1, 13):
        device_time.step(done, "other")
        for phase, milliseconds in (("data", 5), ("forward", 2), ("backward", 3), ("other", 1)):
            device_time.on_phase(phase)
            timeline.milliseconds += milliseconds
    device_time.step(13, "other")
    seconds = device_time.seconds()
    assert seconds == pytest.approx(
        {"data": 0.015, "forward": 0.006, "backward": 0.009, "other": 0.003}
    )


def test_time_between_two_marked_steps_is_not_counted(timeline):
    device_time = DeviceTime()
    device_time.step(4, "other")
    device_time.on_phase("forward")
    timeline.milliseconds += 2
    device_time.step(5, "other")
    timeline.milliseconds += 1000
    device_time.step(8, "other")
    assert sum(device_time.seconds().values()) == pytest.approx(0.002)
