"""Record the phases of a run's training step while it trains briefly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight.data.loader import Batch, Loader
from onsight.step.update import MovingAverage
from onsight.tune.trial import Trial
from onsight_explain.devices import has_streams
from onsight_explain.tracing.clock import PhaseClock
from onsight_explain.tracing.device_time import DeviceTime, effective_phases
from onsight_explain.tracing.recorder import Recorder, StepCounter
from onsight_explain.tracing.sites import Sites
from onsight_explain.tracing.timeline import Timeline, TimelineRecorder

_CHUNK_STEPS = 8  # between two checks of the time
_MAX_STEPS = 2_000
_WARM_UP_STEPS = 4


@dataclass(frozen=True)
class StepRecord:
    """A recorded interval of training."""

    seconds: float
    steps: int
    images: int
    phases: dict[str, float]  # seconds, which add up to `seconds`
    device_phases: dict[str, float] | None  # seconds of some steps on the accelerator, if any
    flops: int  # operations per step
    bytes: int  # bytes moved per step
    timeline: Timeline | None = None

    @property
    def images_per_second(self) -> float:
        """Training throughput."""
        return self.images / self.seconds

    @property
    def step_seconds(self) -> float:
        """Mean seconds per step."""
        return self.seconds / self.steps

    def share(self, *phases: str) -> float:
        """Return the phases' share of the time, measured on the accelerator if there is one."""
        seconds = effective_phases(self.phases, self.device_phases)
        return sum(seconds.get(name, 0.0) for name in phases) / self.seconds


def record_step(
    trial: Trial, batch_size: int, seconds: float, has_timeline: bool = False
) -> StepRecord:
    """Train a trial for some seconds, and record where they went."""
    device = trial.data.device
    device_time = DeviceTime(device) if has_streams(device) else None
    clock = PhaseClock(*([device_time.on_phase] if device_time else []))

    nowhere = Sites(Path("/nowhere"))  # the lines of Onsight itself, which users cannot change
    line = TimelineRecorder(clock, nowhere) if has_timeline else None

    def after_step(recorder: Recorder) -> None:
        if device_time:
            device_time.step(recorder.steps, clock.phase)
        if line:
            line.step(recorder.steps)

    recorder = Recorder(clock, nowhere, seconds, _MAX_STEPS, _WARM_UP_STEPS, after_step)
    train = trial.timer(batch_size)
    recorder.install()
    _time_own_parts(recorder, trial)
    try:
        while not recorder.window.is_over:
            train(_CHUNK_STEPS)
    finally:
        recorder.undo()
    counter = StepCounter()
    counter.open()
    train(1)
    flops, moved = counter.close()
    interval = recorder.window.interval()
    assert interval
    first, last, _ = interval
    return StepRecord(
        seconds=last.time - first.time,
        steps=last.steps - first.steps,
        images=last.images - first.images,
        phases={name: last.phases[name] - first.phases[name] for name in last.phases},
        device_phases=device_time.seconds() if device_time else None,
        flops=flops,
        bytes=moved,
        timeline=line.timeline(first.time, last.time, device_time) if line else None,
    )


def _time_own_parts(recorder: Recorder, trial: Trial) -> None:
    """Time what torch's calls do not reveal: Onsight's loader, augmentation and moving average."""
    recorder.patches.put(Loader, "epoch", _time_as_data(Loader.epoch, recorder.clock))
    kind = type(trial.update.augmentation)
    for owner, name, phase in (
        (kind, "draw_numbers", "augment"),
        (kind, "augment_images", "augment"),
        (kind, "mix_batch", "augment"),
        (MovingAverage, "update", "optimizer"),
    ):
        recorder.time(owner, name, phase)


def _time_as_data(
    original: Callable[..., Iterator[Batch]], clock: PhaseClock
) -> Callable[..., Any]:
    def epoch(loader: Loader, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        batches = original(loader, *args, **kwargs)
        while True:
            with clock.within("data"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    return epoch
