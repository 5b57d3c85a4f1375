"""Notices by its speed that a plan no longer fits, and measures again at the end of the epoch."""

import math
import time
from contextlib import suppress

from onsight.config import Config
from onsight.errors import NonFiniteLoss
from onsight.hardware.spinning import is_busy
from onsight.report.console import Reporter
from onsight.training.autotune.compute_options import ComputeOptions, Stage, precision_and_threads
from onsight.training.autotune.planning import plan_path, training_seconds
from onsight.training.autotune.probe import Measured, Probe
from onsight.training.pictures.training_data import TrainingData
from onsight.training.plan import ComputePlan

_OFF = 1.4  # times faster or slower than expected
_WINDOW_SECONDS = 15.0
_WARM_UP_SECONDS = 2.0
_MEASURED_SECONDS = 3.0


class SpeedWatch:
    """Compares the speed of each 15 s of training with what the plan expects."""

    def __init__(self, images_per_second: float) -> None:
        self.expected = images_per_second
        self.observed = images_per_second
        self._mark: tuple[int, float] | None = None

    @property
    def is_off(self) -> bool:
        """Whether the last window was 1.4 times as fast or as slow as expected."""
        return not 1 / _OFF < self.observed / self.expected < _OFF

    def see(self, images: int, seconds: float) -> None:
        """Take note of the pictures and the seconds of training since the run began."""
        if self._mark is None:
            if seconds >= _WARM_UP_SECONDS:
                self._mark = images, seconds
        elif seconds - self._mark[1] >= _WINDOW_SECONDS:
            self.observed = (images - self._mark[0]) / (seconds - self._mark[1])
            self._mark = images, seconds

    def expect(self, images_per_second: float) -> None:
        """Start over with a new expectation."""
        self.expected = self.observed = images_per_second
        self._mark = None


class Adaptation:
    """Measures precision and threads again if the speed is off or the load has changed.

    asked: the config as given, with its open choices; options: those in use.
    """

    def __init__(
        self,
        asked: Config,
        options: ComputeOptions,
        images_per_second: float,
        data: TrainingData,
        reporter: Reporter,
    ) -> None:
        self.asked, self.options, self.data, self.reporter = asked, options, data, reporter
        self.watch = SpeedWatch(images_per_second)
        self._note_load()

    def after_epoch(self, epoch: int, most_seconds: float = math.inf) -> ComputeOptions | None:
        """The options to continue with, if others are faster now.

        epoch: how many are done; most_seconds: what measuring again may take.
        """
        if most_seconds < 2 * _MEASURED_SECONDS:
            return None
        reason, watch, before = self._reason(), self.watch, self.options
        if not reason:
            return None
        self.reporter.say(f"plan: {reason}; measuring again after epoch {epoch}")
        try:
            found = self._measure(most_seconds)
        except (RuntimeError, NonFiniteLoss) as error:  # such as no memory for a second network
            self.reporter.warn(f"plan: not measured again: {str(error).splitlines()[0]}")
            watch.expect(watch.observed)
            self._note_load()
            return None
        self._note_load()
        rate = self.asked.batch_size / found.seconds[found.chosen]
        if found.chosen == before:  # so expect the observed speed from now on
            watch.expect(watch.observed)
            self.reporter.say(f"plan: {before} is still the fastest ({rate:,.0f} images/s)")
            return None
        watch.expect(rate)
        self.options = found.chosen
        if not self.was_busy:  # else the kept plan is still right for a quiet machine
            self._forget_kept_plan()
        self.reporter.say(
            f"plan: {found.chosen} from now on ({rate:,.0f} images/s) instead of {before}"
        )
        return found.chosen

    def _reason(self) -> str:
        """Why to measure again; empty: the plan still fits."""
        watch = self.watch
        if watch.is_off:
            slower = watch.observed < watch.expected
            return (
                f"{watch.observed:,.0f} images/s over the last {_WINDOW_SECONDS:.0f} s, "
                f"{'less' if slower else 'more'} than the {watch.expected:,.0f} it was chosen for"
            )
        # Threads chosen beside other work may run as planned when it has ended, and still be few.
        if time.monotonic() - self.noted_at < _WINDOW_SECONDS or is_busy() == self.was_busy:
            return ""
        return "the machine is quiet now" if self.was_busy else "the machine is busy now"

    def _note_load(self) -> None:
        self.was_busy, self.noted_at = is_busy(), time.monotonic()

    def _forget_kept_plan(self) -> None:
        """Delete the cached plan: a later run must not start with what was too slow here."""
        path = plan_path(self.asked, self.data, training_seconds(self.asked, self.data))
        if path:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def _measure(self, most_seconds: float) -> Measured:
        config = self.options.apply(self.asked)
        probe = Probe(config, self.data, most_seconds)
        return probe.measure(_repeatable(self.asked, self.data), self.options, _MEASURED_SECONDS)


def adaptation(
    asked: Config, plan: ComputePlan, data: TrainingData, reporter: Reporter
) -> Adaptation | None:
    """The watch over a measured plan; None if nothing was measured or nothing is left open."""
    rate = plan.images_per_second
    if rate is None or not _repeatable(asked, data):
        return None
    values = {name: choice.value for name, choice in plan.choices().items()}
    return Adaptation(asked, ComputeOptions(**values), rate, data, reporter)


def _repeatable(asked: Config, data: TrainingData) -> list[Stage]:
    """What may change during training: not to fp16, whose loss scale needs steps to settle."""
    return precision_and_threads(asked, data.device, leave_out="fp16")
