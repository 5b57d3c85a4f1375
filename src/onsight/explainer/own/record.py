"""The phases of a run's training step, recorded while it trains for a moment."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.data.loader import Batch, Loader
from onsight.training.autotune.trial import Trial
from onsight.training.step.ema import MovingAverage
from onsight_explain.devices import has_streams
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.device_time import DeviceTime, effective_phases
from onsight_explain.tracing.recorder import Recorder, StepCounter
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.timeline import Timeline, TimelineRecorder

_CHUNK = 8  # steps, after which the clock is looked at
_STEPS = 2_000
_WARM_UP_STEPS = 4


@dataclass(frozen=True)
class StepRecord:
    """A recorded stretch of training. flops, bytes: of one step.

    phases: in seconds, which add up to `seconds`; device_phases: seconds of some of the steps on
    the accelerator's own timeline, if there is one; timeline: if it was asked for.
    """

    seconds: float
    steps: int
    images: int
    phases: dict[str, float]
    device_phases: dict[str, float] | None
    flops: int
    bytes: int
    timeline: Timeline | None = None

    @property
    def images_per_second(self) -> float:
        """Images trained on per second."""
        return self.images / self.seconds

    @property
    def step_seconds(self) -> float:
        """Of one step, on average."""
        return self.seconds / self.steps

    def share(self, *phases: str) -> float:
        """Their share of the time; on an accelerator, of its own."""
        judged = effective_phases(self.phases, self.device_phases)
        return sum(judged.get(name, 0.0) for name in phases) / self.seconds


def record_step(
    trial: Trial, batch_size: int, seconds: float, has_timeline: bool = False
) -> StepRecord:
    """Train a trial for so many seconds, and record where they went."""
    device = trial.data.device
    device_time = DeviceTime(device) if has_streams(device) else None
    clock = PhaseClock(*([device_time.on_phase] if device_time else []))

    nowhere = Sites(Path("/nowhere"))  # these lines are ours: the user cannot change them
    line = TimelineRecorder(clock, nowhere) if has_timeline else None

    def after_step(recorder: Recorder) -> None:
        if device_time:
            device_time.step(recorder.steps, clock.phase)
        if line:
            line.step(recorder.steps)

    recorder = Recorder(clock, nowhere, seconds, _STEPS, _WARM_UP_STEPS, after_step)
    train = trial.at(batch_size)
    recorder.install()
    _watch_own_parts(recorder, trial)
    try:
        while not recorder.window.is_over:
            train(_CHUNK)
    finally:
        recorder.undo()
    counter = StepCounter()
    counter.open()
    train(1)
    flops, moved = counter.close()
    stretch = recorder.window.stretch()
    assert stretch
    first, last, _ = stretch
    return StepRecord(
        seconds=last.moment - first.moment,
        steps=last.steps - first.steps,
        images=last.images - first.images,
        phases={name: last.phases[name] - first.phases[name] for name in last.phases},
        device_phases=device_time.seconds() if device_time else None,
        flops=flops,
        bytes=moved,
        timeline=line.timeline(first.moment, last.moment, device_time) if line else None,
    )


def _watch_own_parts(recorder: Recorder, trial: Trial) -> None:
    """Follow what torch's calls do not show: Onsight's loader, augmentation and moving average."""
    recorder.patches.put(Loader, "epoch", _in_data(Loader.epoch, recorder.clock))
    kind = type(trial.update.augmentation)
    for owner, name, phase in (
        (kind, "draw", "augment"),
        (kind, "change", "augment"),
        (kind, "mixed", "augment"),
        (MovingAverage, "update", "optimizer"),
    ):
        recorder.time(owner, name, phase)


def _in_data(original: Callable[..., Iterator[Batch]], clock: PhaseClock) -> Callable[..., Any]:
    def epoch(loader: Loader, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        batches = original(loader, *args, **kwargs)
        while True:
            with clock.within("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    return epoch
