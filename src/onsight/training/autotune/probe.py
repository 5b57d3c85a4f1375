"""The measured plan: a run's own step, timed briefly with each set of options."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.errors import NonFiniteLoss
from onsight.training.autotune.pick_fastest import Candidate, pick_fastest
from onsight.training.autotune.trial import Trial
from onsight.training.prepare import PreparedRun

_CHECKED_STEPS = 3  # whose losses must agree with those of the default options
_TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}  # relative
_FIRST_SHARE = 0.7  # of the time that is left goes to a stage that others follow
_WINDOW_SECONDS = 0.03  # of a visit, at least one step

ComputeOptions = dict[str, Any]  # fields of the config that say how it computes


@dataclass
class Measured:
    """What was chosen; by name: seconds a step, options, and why some were refused."""

    chosen: ComputeOptions
    seconds: dict[str, float]
    options: dict[str, ComputeOptions]
    refused: dict[str, str]


class Probe:
    """Times a run's training step under several options; the first given are the default."""

    def __init__(self, config: Config, prepared: PreparedRun) -> None:
        self.config = config
        self.prepared = prepared
        self.batch_size = min(config.batch_size, len(prepared.dataset.ids(TRAIN)))
        self.reference: list[float] = []
        self.refused: dict[str, str] = {}

    def measure(
        self, stages: list[Callable[[ComputeOptions], list[ComputeOptions]]], most_seconds: float
    ) -> Measured:
        """Time the options of each stage, which are made from the winner of the one before."""
        found = Measured({}, {}, {}, self.refused)
        visits: dict[str, Callable[[], float]] = {}
        begun = time.perf_counter()
        for stage in stages:
            entered = {options_name(options): options for options in stage(found.chosen)}
            for name, options in entered.items():
                visits.setdefault(name, self._visits(name, options))
            candidates = [
                Candidate(name, visits[name]) for name in entered if name not in self.refused
            ]
            seconds = most_seconds - (time.perf_counter() - begun)
            winner = pick_fastest(
                candidates, seconds if stage is stages[-1] else _FIRST_SHARE * seconds
            )
            found.chosen = entered[winner.name]
            found.options |= entered
            timed = [one for one in candidates if one.seconds and one.name not in self.refused]
            found.seconds |= {one.name: one.median for one in timed}
        return found

    def _visits(self, name: str, options: ComputeOptions) -> Callable[[], float]:
        """A function that times steps with these options; its first call builds and checks it."""
        timed: list[Callable[[int], float]] = []
        steps = 1

        def visit() -> float:
            nonlocal steps
            if timed:
                return timed[0](steps) / steps
            try:
                work, seconds = self._build(options)
            except _Refused as error:
                self.refused[name] = str(error)
                return float("inf")
            timed.append(work)
            steps = max(1, round(_WINDOW_SECONDS / seconds))
            return seconds

        return visit

    def _build(self, options: ComputeOptions) -> tuple[Callable[[int], float], float]:
        """What times steps with these options, and the seconds of each after the first."""
        trial = Trial(self.config.model_copy(update=options), self.prepared)
        try:
            timed = trial.at(self.batch_size)
            timed(1)
            seconds = timed(_CHECKED_STEPS - 1) / (_CHECKED_STEPS - 1)
        except (RuntimeError, NonFiniteLoss) as error:
            if not self.reference:
                raise
            raise _Refused(str(error).splitlines()[0]) from error
        self._check(trial, options)
        return timed, seconds

    def _check(self, trial: Trial, options: ComputeOptions) -> None:
        trial.losses += trial.step.flush()
        tolerance = _TOLERANCES[options["precision"]]
        self.reference = self.reference or list(trial.losses)
        for mine, theirs in zip(trial.losses, self.reference, strict=True):
            off = abs(mine - theirs) / max(abs(theirs), 0.1)
            if off > tolerance:
                raise _Refused(f"its loss is {100 * off:.1f}% off, more than {100 * tolerance:g}%")


class _Refused(Exception):
    """Options that cannot be used, with the reason."""


def options_name(options: ComputeOptions) -> str:
    """Options in words: precision, threads, memory format if not the default, compiled or not."""
    words = [
        options["precision"],
        f"{options['threads']} thread{'' if options['threads'] == 1 else 's'}",
    ]
    words += [options["memory_format"]] if options["memory_format"] != "auto" else []
    words += [f"{options['accumulate']} parts"] if options["accumulate"] > 1 else []
    return ", ".join([*words, *(["compiled"] if options["compile"] == "on" else [])])
