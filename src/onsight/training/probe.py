"""The measured plan: a run's own step, timed for a moment each way that it could be computed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.errors import NonFiniteLoss
from onsight.training.material import Material
from onsight.training.race import Racer, race
from onsight.training.trial import Trial

_CHECKED_STEPS = 3  # whose losses must agree with those of the first way
_TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}  # relative
_FIRST_SHARE = 0.7  # of the time that is left goes to a stage that others follow
_WINDOW_SECONDS = 0.03  # of a visit, at least one step

Way = dict[str, Any]  # fields of the config that say how it computes


@dataclass
class Measured:
    """What was found: the way chosen; by name seconds a step, ways, and why some were refused."""

    chosen: Way
    seconds: dict[str, float]
    ways: dict[str, Way]
    refused: dict[str, str]


class Probe:
    """Times ways to compute a run's training step; the first way given is the plain one."""

    def __init__(self, config: Config, material: Material) -> None:
        self.config = config
        self.material = material
        self.batch_size = min(config.batch_size, len(material.dataset.ids(TRAIN)))
        self.reference: list[float] = []
        self.refused: dict[str, str] = {}

    def measure(self, stages: list[Callable[[Way], list[Way]]], most_seconds: float) -> Measured:
        """Race the ways of each stage, which are made from the winner of the one before."""
        found = Measured({}, {}, {}, self.refused)
        visits: dict[str, Callable[[], float]] = {}
        begun = time.perf_counter()
        for stage in stages:
            entered = {way_name(way): way for way in stage(found.chosen)}
            for name, way in entered.items():
                visits.setdefault(name, self._visits(name, way))
            racers = [Racer(name, visits[name]) for name in entered if name not in self.refused]
            seconds = most_seconds - (time.perf_counter() - begun)
            winner = race(racers, seconds if stage is stages[-1] else _FIRST_SHARE * seconds)
            found.chosen = entered[winner.name]
            found.ways |= entered
            timed = [one for one in racers if one.seconds and one.name not in self.refused]
            found.seconds |= {one.name: one.median for one in timed}
        return found

    def _visits(self, name: str, way: Way) -> Callable[[], float]:
        """A function that times some steps of a way; its first call builds and checks it."""
        timed: list[Callable[[int], float]] = []
        steps = 1

        def visit() -> float:
            nonlocal steps
            if timed:
                return timed[0](steps) / steps
            try:
                work, seconds = self._build(way)
            except _Refused as error:
                self.refused[name] = str(error)
                return float("inf")
            timed.append(work)
            steps = max(1, round(_WINDOW_SECONDS / seconds))
            return seconds

        return visit

    def _build(self, way: Way) -> tuple[Callable[[int], float], float]:
        """What times a way's steps, and the seconds of each after the first."""
        trial = Trial(self.config.model_copy(update=way), self.material)
        try:
            timed = trial.at(self.batch_size)
            timed(1)
            seconds = timed(_CHECKED_STEPS - 1) / (_CHECKED_STEPS - 1)
        except (RuntimeError, NonFiniteLoss) as error:
            if not self.reference:
                raise
            raise _Refused(str(error).splitlines()[0]) from error
        self._check(trial, way)
        return timed, seconds

    def _check(self, trial: Trial, way: Way) -> None:
        trial.losses += trial.step.settle()
        tolerance = _TOLERANCES[way["precision"]]
        self.reference = self.reference or list(trial.losses)
        for mine, theirs in zip(trial.losses, self.reference, strict=True):
            off = abs(mine - theirs) / max(abs(theirs), 0.1)
            if off > tolerance:
                raise _Refused(f"its loss is {100 * off:.1f}% off, more than {100 * tolerance:g}%")


class _Refused(Exception):
    """A way that cannot be taken, with the reason."""


def way_name(way: Way) -> str:
    """A way in words: precision, threads, memory format if not the usual one, compiled or not."""
    words = [way["precision"], f"{way['threads']} thread{'' if way['threads'] == 1 else 's'}"]
    words += [way["memory_format"]] if way["memory_format"] != "auto" else []
    words += [f"{way['accumulate']} parts"] if way["accumulate"] > 1 else []
    return ", ".join([*words, *(["compiled"] if way["compile"] == "on" else [])])
