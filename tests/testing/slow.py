"""A network that takes its time by a fake clock: nothing sleeps, and all seconds are known."""

from torch import nn

from onsight.models.classic import LeNet


class Clock:
    """Seconds that pass only when somebody adds to them."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


class Slow(nn.Module):
    """Each image takes step_seconds in training and judge_seconds in evaluation."""

    clock = Clock()  # of the class, so that copies share it
    step_seconds = judge_seconds = 0.0

    def __init__(self):
        super().__init__()
        self.net = LeNet((1, 32, 32), 2)

    def forward(self, inputs):
        seconds = self.step_seconds if self.training else self.judge_seconds
        self.clock.now += seconds * len(inputs)
        return self.net(inputs)


def make_slow(monkeypatch, step_seconds, judge_seconds, now=0.0):
    """The fake clock in place of the real ones, and a network that it goes by."""
    clock = Clock(now)
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(f"time.{name}", clock)
    for name, value in {
        "clock": clock, "step_seconds": step_seconds, "judge_seconds": judge_seconds
    }.items():  # fmt: skip
        monkeypatch.setattr(Slow, name, value)
    return clock, Slow()
