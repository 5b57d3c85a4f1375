"""Times a run's own training step with each set of compute options, and picks the fastest."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.errors import ConfigError, NonFiniteLoss
from onsight.step.graphed import MAX_STEPS_PER_REPLAY
from onsight.tune.compute import ComputeOptions, Stage, may_graph
from onsight.tune.training_data import TrainingData
from onsight.tune.trial import Trial

_CHECKED_STEPS = 3  # their losses must agree with those of the default options
_COMPILED_STEPS = 2  # timed after the checked steps, two of which record CUDA graphs
_GRAPHED_STEPS = 2 * MAX_STEPS_PER_REPLAY  # checked as well if steps may be replayed
_TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}  # relative
_STAGE_SHARE = 0.7  # of the remaining time, for a stage that others follow
_WINDOW_SECONDS = 0.03  # per measurement, but at least one step


@dataclass
class Measured:
    """The result of measuring."""

    chosen: ComputeOptions  # options to use
    # Seconds per step of all options that were timed.
    seconds: dict[ComputeOptions, float] = field(default_factory=dict)
    # Why other options cannot be used.
    refused: dict[ComputeOptions, str] = field(default_factory=dict)


class Probe:
    """Times a run's training step with several options.

    Args:
        hard_seconds: The limit on measuring, whatever it finds.
        max_images: The images of a batch that are computed, if whole batches take too long.
    """

    def __init__(
        self,
        config: Config,
        data: TrainingData,
        hard_seconds: float = math.inf,
        max_images: int | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.end = time.perf_counter() + hard_seconds
        self.full_batch = min(config.batch_size, len(data.dataset.ids(TRAIN)))
        self.batch_size = min(self.full_batch, max_images or self.full_batch)
        self.reference: list[float] = []  # losses of the default options
        self.reference_precision = ""  # theirs
        self.refused: dict[ComputeOptions, str] = {}
        self.built: dict[ComputeOptions, Callable[[], float]] = {}  # timers, each with a network

    def measure(self, stages: list[Stage], default: ComputeOptions, max_seconds: float) -> Measured:
        """Time the options of each stage, which vary the winner of the previous one."""
        measured = Measured(default, refused=self.refused)
        self.built.clear()  # networks of a call that ran out of memory
        begun = time.perf_counter()
        for stage in stages:
            if measured.seconds and time.perf_counter() >= min(self.end, begun + 2 * max_seconds):
                break
            candidates = [
                TimedOptions(options, partial(self._time_step, options))
                for options in stage(measured.chosen)
                if options not in self.refused
            ]
            seconds = max_seconds - (time.perf_counter() - begun)
            seconds *= 1 if stage is stages[-1] else _STAGE_SHARE
            remaining = self.end - time.perf_counter()
            measured.chosen = pick_fastest(candidates, seconds, remaining, self._free).options
            for loser in self.built.keys() - {measured.chosen}:
                self._free(loser)
            scale = self.full_batch / self.batch_size
            measured.seconds |= {
                candidate.options: scale * candidate.median
                for candidate in candidates
                if candidate.seconds and candidate.options not in self.refused
            }
        return measured

    def _time_step(self, options: ComputeOptions) -> float:
        """Return the seconds of a step; the first call builds the step."""
        if options in self.built:
            return self.built[options]()
        try:
            time_steps, seconds, steps_per_replay = self._build(options)
        except _Refused as error:
            self.refused[options] = str(error)
            return float("inf")
        replays = max(1, round(_WINDOW_SECONDS / seconds / steps_per_replay))
        steps = replays * steps_per_replay
        self.built[options] = lambda: time_steps(steps) / steps
        return seconds

    def _free(self, options: ComputeOptions) -> None:
        self.built.pop(options, None)

    def _build(self, options: ComputeOptions) -> tuple[Callable[[int], float], float, int]:
        """Return a timer of steps with these options, seconds per step, and steps per replay.

        Raises:
            _Refused: If the options cannot be used.
        """
        try:
            trial = Trial(options.apply(self.config), self.data)
            time_steps = trial.timer(self.batch_size)
            seconds = self._warm_up(time_steps, options)
            self._check_losses(trial, options)
            if options.compile == "on":
                seconds = time_steps(_COMPILED_STEPS) / _COMPILED_STEPS
        except (RuntimeError, ConfigError, NonFiniteLoss) as error:
            if not self.reference:
                raise
            raise _Refused(str(error).splitlines()[0]) from error
        if trial.step.refused:
            raise _Refused(trial.step.refused)
        return time_steps, seconds, trial.step.steps_per_replay

    def _warm_up(self, time_steps: Callable[[int], float], options: ComputeOptions) -> float:
        """Make the steps whose losses are checked; return the seconds of one of the last."""
        first = time_steps(1)
        is_late = time.perf_counter() + (_CHECKED_STEPS - 1) * first > self.end
        if is_late and self.reference:
            raise _Refused(f"a step took {first:.1f} s, too long to time it")
        seconds = time_steps(_CHECKED_STEPS - 1) / (_CHECKED_STEPS - 1)
        # The reference needs as many losses as the options that are compared with it.
        is_reference_for_graph = not self.reference and may_graph(self.config, self.data.device)
        if options.cuda_graph == "on" or is_reference_for_graph:
            seconds = time_steps(_GRAPHED_STEPS) / _GRAPHED_STEPS
        return seconds

    def _check_losses(self, trial: Trial, options: ComputeOptions) -> None:
        """Refuse options whose losses differ from those of the default options."""
        trial.flush()
        if not self.reference:
            self.reference, self.reference_precision = list(trial.losses), options.precision
        # Rounding of either: bf16 is the default where it is fast.
        tolerance = max(_TOLERANCES[options.precision], _TOLERANCES[self.reference_precision])
        for loss, reference in zip(trial.losses, self.reference, strict=False):
            error = abs(loss - reference) / max(abs(reference), 0.1)
            if error > tolerance:
                raise _Refused(
                    f"its loss is {100 * error:.1f}% off, more than {100 * tolerance:g}%"
                )


class _Refused(Exception):
    """Raised for options that cannot be used, with the reason."""


_ROUNDS = 9
_MIN_ROUNDS = 3  # before a difference may count as noise
_HOPELESS = (2.0, 1.5, 1.3)  # times the fastest, after 1, 2 and more rounds: not timed again
NEGLIGIBLE = 1.03  # times the fastest counts as equally fast


@dataclass
class TimedOptions:
    """Options with their times so far."""

    options: ComputeOptions
    measure: Callable[[], float]  # returns the seconds of a step with these options
    seconds: list[float] = field(default_factory=list)  # of a step, in each round

    @property
    def median(self) -> float:
        """Seconds per step, the median over the rounds."""
        return statistics.median(self.seconds)


def pick_fastest(
    candidates: Sequence[TimedOptions],
    max_seconds: float,
    hard_seconds: float = math.inf,
    on_drop: Callable[[ComputeOptions], object] = lambda options: None,
) -> TimedOptions:
    """Time the candidates; return the first that is as fast as the fastest, within noise.

    Every candidate that still has a chance is timed once per round, so that noise affects all
    alike. Those that were never timed cannot win.

    Args:
        candidates: What to time, the simplest first.
        max_seconds: The limit on measuring; the first round may take twice as long.
        hard_seconds: No measurement is begun that would end later, judging by the longest so far.
        on_drop: Called with options that are not timed again.
    """
    begun = time.perf_counter()
    longest = 0.0
    remaining = list(candidates)
    for round_index in range(_ROUNDS):
        for candidate in remaining:
            limit = max_seconds * (1 if candidates[-1].seconds else 2)
            now = time.perf_counter() - begun
            is_late = now > limit or now + longest > hard_seconds
            if is_late and candidates[0].seconds:
                return pick_from_timed(candidates)
            candidate.seconds.append(candidate.measure())
            longest = max(longest, time.perf_counter() - begun - now)
        timed = [candidate for candidate in remaining if candidate.seconds]
        fastest = min(candidate.median for candidate in timed)
        slowest = fastest * _HOPELESS[min(round_index, len(_HOPELESS) - 1)]
        remaining = [candidate for candidate in timed if candidate.median <= slowest]
        for candidate in timed:
            if candidate not in remaining:
                on_drop(candidate.options)
        if len(remaining) == 1:
            break
    return pick_from_timed(candidates)


def pick_from_timed(candidates: Sequence[TimedOptions]) -> TimedOptions:
    """Return the first candidate that is not slower than the fastest, or only within noise."""
    timed = [candidate for candidate in candidates if candidate.seconds]
    fastest = min(timed, key=lambda candidate: candidate.median)
    return next(candidate for candidate in timed if _keeps_up(candidate, fastest))


def _keeps_up(candidate: TimedOptions, fastest: TimedOptions) -> bool:
    """Return whether the rounds that both took part in show no difference beyond noise."""
    ratios = sorted(
        seconds / best for seconds, best in zip(candidate.seconds, fastest.seconds, strict=False)
    )
    if candidate is fastest or statistics.median(ratios) <= NEGLIGIBLE:
        return True
    # A simple sign test: a slower candidate loses three in four of at least three rounds.
    losses = sum(ratio > 1 for ratio in ratios)
    return len(ratios) >= _MIN_ROUNDS and losses < 0.75 * len(ratios)
