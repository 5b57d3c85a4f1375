"""Phases on an accelerator's timeline, with fakes of torch's events and streams."""

import types

import pytest
import torch
from torch import nn

from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.device_time import DeviceTime, effective_phases, follow_device

GPU = torch.device("xpu:1")  # not the current one, and not NVIDIA's


class Timeline:
    """How far the accelerator's current stream is."""

    def __init__(self):
        self.milliseconds = 0.0


@pytest.fixture
def timeline(monkeypatch):
    line = Timeline()

    def check(device):
        assert device == GPU
        return line

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.at = stream.milliseconds

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.xpu, "Event", Event)
    monkeypatch.setattr(torch.xpu, "current_stream", check)
    monkeypatch.setattr(torch.accelerator, "synchronize", check)
    return line


def test_only_every_fourth_step_is_marked_and_each_stretch_has_its_phase(timeline):
    device_time = DeviceTime(GPU)
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
    device_time = DeviceTime(GPU)
    device_time.step(4, "other")
    device_time.on_phase("forward")
    timeline.milliseconds += 2
    device_time.step(5, "other")
    timeline.milliseconds += 1000
    device_time.step(8, "other")
    assert sum(device_time.seconds().values()) == pytest.approx(0.002)


def test_phases_are_measured_on_the_device_but_evaluations_on_the_host():
    host = {"sync": 6.0, "forward": 1.0, "evaluation": 3.0}
    device = {"forward": 0.1, "backward": 0.2, "sync": 0.05, "evaluation": 9.0}
    judged = effective_phases(host, device)
    assert judged == pytest.approx({"forward": 2, "backward": 4, "sync": 1, "evaluation": 3})
    assert effective_phases(host, None) == effective_phases(host, {}) == host


@pytest.mark.parametrize(("where", "is_followed"), [("cpu", False), ("mps", False), (GPU, True)])
def test_a_script_is_followed_on_the_device_of_its_network(where, is_followed):
    clock = PhaseClock()
    parameter = types.SimpleNamespace(device=torch.device(where))
    network = types.SimpleNamespace(parameters=lambda: iter([parameter]))
    assert (follow_device(network, clock) is not None) == is_followed
    assert bool(clock.on_phase) == is_followed
    assert follow_device(nn.ReLU(), clock) is None  # without a parameter


def test_slices_lie_on_the_clock_of_the_host(timeline, monkeypatch):
    monkeypatch.setattr("onsight_explain.tracing.device_time.perf_counter", lambda: 100.0)
    device_time = DeviceTime(GPU)
    device_time.step(4, "data")
    timeline.milliseconds += 5
    device_time.on_phase("forward")
    timeline.milliseconds += 2
    device_time.step(5, "other")  # not marked
    timeline.milliseconds += 3
    (phase, begin, end), (other, since, until) = device_time.slices()
    assert (phase, other) == ("data", "forward")
    assert (begin, end, since, until) == pytest.approx((99.990, 99.995, 99.995, 99.997))
