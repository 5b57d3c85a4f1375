"""The measured plan: a run's own step, timed briefly with each set of options."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.errors import ConfigError, NonFiniteLoss
from onsight.step.graphed import MAX_STEPS_PER_REPLAY
from onsight.tune.compute import ComputeOptions, Stage, may_graph
from onsight.tune.training_data import TrainingData
from onsight.tune.trial import Trial

_CHECKED_STEPS = 3  # whose losses must agree with those of the default options
_REPLAYED_STEPS = 2  # first timed of a compiled way, once the steps before have recorded its graphs
_GRAPHED_STEPS = 2 * MAX_STEPS_PER_REPLAY  # checked besides where steps may be replayed
_TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}  # relative
_FIRST_SHARE = 0.7  # of the time left, for a stage that others follow
_WINDOW_SECONDS = 0.03  # per visit, but at least one step


@dataclass
class Measured:
    """The chosen options, the seconds per step of all that were timed, why others were refused."""

    chosen: ComputeOptions
    seconds: dict[ComputeOptions, float] = field(default_factory=dict)
    refused: dict[ComputeOptions, str] = field(default_factory=dict)


class Probe:
    """Times a run's training step with several options.

    hard_seconds: measuring must not take longer, whatever it finds; most_images: those of a
    batch that are computed, if whole batches would take too long.
    """

    def __init__(
        self,
        config: Config,
        data: TrainingData,
        hard_seconds: float = math.inf,
        most_images: int | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.until = time.perf_counter() + hard_seconds
        self.batch_size = min(
            config.batch_size, len(data.dataset.ids(TRAIN)), most_images or config.batch_size
        )
        self.reference: list[float] = []
        self.refused: dict[ComputeOptions, str] = {}
        self.built: dict[ComputeOptions, Callable[[], float]] = {}  # timers, each with its network

    def measure(
        self, stages: list[Stage], default: ComputeOptions, most_seconds: float
    ) -> Measured:
        """Time the options of each stage, which build on the winner of the previous one."""
        found = Measured(default, refused=self.refused)
        self.built.clear()  # if memory ran out before
        begun = time.perf_counter()
        for stage in stages:
            if found.seconds and time.perf_counter() >= min(self.until, begun + 2 * most_seconds):
                break
            candidates = [
                Candidate(one, self._visits(one))
                for one in stage(found.chosen)
                if one not in self.refused
            ]
            seconds = most_seconds - (time.perf_counter() - begun)
            seconds *= 1 if stage is stages[-1] else _FIRST_SHARE
            left = self.until - time.perf_counter()
            found.chosen = pick_fastest(candidates, seconds, left, self._drop).options
            for loser in self.built.keys() - {found.chosen}:
                self._drop(loser)
            timed = [one for one in candidates if one.seconds and one.options not in self.refused]
            found.seconds |= {one.options: self._whole(one.median) for one in timed}
        return found

    def _whole(self, seconds: float) -> float:
        """Seconds for a whole batch, from those for the part of it that was computed."""
        whole = min(self.config.batch_size, len(self.data.dataset.ids(TRAIN)))
        return seconds * whole / self.batch_size

    def _visits(self, options: ComputeOptions) -> Callable[[], float]:
        """A function that times steps with these options, which it builds and checks if need be."""

        def visit() -> float:
            if options in self.built:
                return self.built[options]()
            try:
                timed, seconds, steps_per_replay = self._build(options)
            except _Refused as error:
                self.refused[options] = str(error)
                return float("inf")
            replays = max(1, round(_WINDOW_SECONDS / seconds / steps_per_replay))
            steps = replays * steps_per_replay
            self.built[options] = lambda: timed(steps) / steps
            return seconds

        return visit

    def _drop(self, options: ComputeOptions) -> None:
        """Free the network of options that lost: the others need its memory."""
        self.built.pop(options, None)

    def _build(self, options: ComputeOptions) -> tuple[Callable[[int], float], float, int]:
        """Return a timer of steps with these options, seconds per step, and steps per replay."""
        try:
            trial = Trial(options.apply(self.config), self.data)
            timed = trial.at(self.batch_size)
            self._in_time(timed(1))
            seconds = timed(_CHECKED_STEPS - 1) / (_CHECKED_STEPS - 1)
            if self._is_graphed(options):
                seconds = timed(_GRAPHED_STEPS) / _GRAPHED_STEPS
            self._check(trial, options)
            if options.compile == "on":  # the 2nd and 3rd step recorded CUDA graphs
                seconds = timed(_REPLAYED_STEPS) / _REPLAYED_STEPS
        except (RuntimeError, ConfigError, NonFiniteLoss) as error:
            if not self.reference:
                raise
            raise _Refused(str(error).splitlines()[0]) from error
        if trial.step.refused:
            raise _Refused(trial.step.refused)
        return timed, seconds, trial.step.steps_per_replay

    def _is_graphed(self, options: ComputeOptions) -> bool:
        """Whether steps are replayed, or those of other options whose losses must be the same."""
        if options.cuda_graph == "on":
            return True
        return not self.reference and may_graph(self.config, self.data.device)

    def _in_time(self, step_seconds: float) -> None:
        """Refuse options with which even checking their losses would take too long."""
        late = time.perf_counter() + (_CHECKED_STEPS - 1) * step_seconds > self.until
        if late and self.reference:
            raise _Refused(f"a step took {step_seconds:.1f} s, too long to time it")

    def _check(self, trial: Trial, options: ComputeOptions) -> None:
        trial.flush()
        tolerance = _TOLERANCES[options.precision]
        self.reference = self.reference or list(trial.losses)
        for mine, theirs in zip(trial.losses, self.reference, strict=False):
            off = abs(mine - theirs) / max(abs(theirs), 0.1)
            if off > tolerance:
                raise _Refused(f"its loss is {100 * off:.1f}% off, more than {100 * tolerance:g}%")


class _Refused(Exception):
    """Options that cannot be used, with the reason."""


Options = TypeVar("Options")

_ROUNDS = 9
_FEWEST_ROUNDS = 3  # before a difference may count as noise
_HOPELESS = (2.0, 1.5, 1.3)  # times the fastest after 1, 2, more rounds: not timed again
NEGLIGIBLE = 1.03  # times the fastest: counts as equal


@dataclass
class Candidate(Generic[Options]):
    """Options to time; `visit` measures the seconds of a step with them, now."""

    options: Options
    visit: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds per step, the median over the rounds."""
        return statistics.median(self.seconds)


def pick_fastest(
    candidates: Sequence[Candidate[Options]],
    most_seconds: float,
    hard_seconds: float = math.inf,
    lost: Callable[[Options], object] = lambda options: None,
) -> Candidate[Options]:
    """The first candidate, simplest first, that is as fast as the fastest within noise.

    Every candidate that still has a chance is visited once per round, so that noise affects all
    alike. Those not yet timed when the time is up do not take part. hard_seconds: a visit is not
    begun if it would end later, as long as it takes no longer than the longest so far. lost: told
    of the options that are not timed again.
    """
    begun = time.perf_counter()
    longest = 0.0
    hopeful = list(candidates)
    for number in range(_ROUNDS):
        for candidate in hopeful:
            # The first round may take twice the time: what is never timed is never chosen.
            limit = most_seconds * (1 if candidates[-1].seconds else 2)
            now = time.perf_counter() - begun
            is_late = now > limit or now + longest > hard_seconds
            if is_late and candidates[0].seconds:
                return choose(candidates)
            candidate.seconds.append(candidate.visit())
            longest = max(longest, time.perf_counter() - begun - now)
        timed = [candidate for candidate in hopeful if candidate.seconds]
        best = min(candidate.median for candidate in timed)
        slowest = best * _HOPELESS[min(number, len(_HOPELESS) - 1)]
        hopeful = [candidate for candidate in timed if candidate.median <= slowest]
        for candidate in timed:
            if candidate not in hopeful:
                lost(candidate.options)
        if len(hopeful) == 1:
            break
    return choose(candidates)


def choose(candidates: Sequence[Candidate[Options]]) -> Candidate[Options]:
    """The first candidate whose lag behind the fastest is negligible or no more than noise."""
    timed = [candidate for candidate in candidates if candidate.seconds]
    fastest = min(timed, key=lambda candidate: candidate.median)
    return next(candidate for candidate in timed if _keeps_up(candidate, fastest))


def _keeps_up(candidate: Candidate[Options], fastest: Candidate[Options]) -> bool:
    """Whether the rounds that both took part in show no difference beyond noise."""
    ratios = sorted(
        mine / best for mine, best in zip(candidate.seconds, fastest.seconds, strict=False)
    )
    if candidate is fastest or statistics.median(ratios) <= NEGLIGIBLE:
        return True
    # A simple sign test: a slower one loses at least three in four of three or more rounds.
    lost = sum(ratio > 1 for ratio in ratios)
    return len(ratios) >= _FEWEST_ROUNDS and lost < 0.75 * len(ratios)
