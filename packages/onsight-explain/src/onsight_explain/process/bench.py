"""The bench for scripts: each trial is a process that runs the script with some what-ifs."""

import math
import statistics
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from onsight_explain.cores import usable_cores
from onsight_explain.errors import ScriptFailed
from onsight_explain.process.processes import Processes
from onsight_explain.process.running import ScriptProcess
from onsight_explain.process.saved_timings import read_saved_timings
from onsight_explain.script.reading import parse_script
from onsight_explain.script.trace import ItemFacts, Trace
from onsight_explain.search.tried import Losses, Untried
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.table import what_ifs_for
from onsight_explain.what_ifs.what_if import Seen, WhatIf

_LEAST_SECONDS = 2.0  # beside its window, for a script that took long to start
_SAME, _CLOSE, _ALIKE = 1e-3, 0.02, 0.1  # relative differences of losses

WhatIfs = tuple[WhatIf, ...]


class ScriptTrial:
    """A process that is started when it is first measured, and again whenever it has ended."""

    def __init__(self, bench: "ScriptBench", what_ifs: WhatIfs) -> None:
        self.bench, self.what_ifs = bench, what_ifs
        self.process: ScriptProcess | None = None
        self.first: Trace | None = None

    def begin(self, process: ScriptProcess) -> Trace:
        """Go on with this process, and keep what is seen first. Raises ScriptFailed."""
        self.process = process
        trace = self._with_saved_timings(process.trace())
        self.first = self.first or trace
        return trace

    def measure(self, seconds: float) -> float:
        """Images per second over about so long. Raises Untried."""
        try:
            trace = self._window(seconds)
            if trace.ended == "script" and not trace.images:
                trace = self._window(seconds)  # it was nearly at its end: once more from the start
        except ScriptFailed as error:
            raise Untried(_problem(self.what_ifs, str(error))) from None
        if not trace.images:
            raise Untried("no training step in time")
        if self.first and not all(one.shows(self.first) for one in self.what_ifs):
            raise Untried("it changed nothing: the training sets this itself, or has no use for it")
        return trace.images_per_second

    def losses(self) -> Losses:
        """How its first losses compare with those of the unchanged script."""
        first = self.first
        if first is None:
            return "not comparable"
        return compare_losses(self.bench.losses, first.losses, self.what_ifs, first.notes)

    def notes(self) -> list[str]:
        """What was not possible, or not completely."""
        return self.first.notes if self.first else []

    def close(self) -> None:
        """End its process."""
        if self.process:
            self.process.close()

    def _window(self, seconds: float) -> Trace:
        if self.process and not self.process.is_over:
            return self._with_saved_timings(self.process.measure(seconds, self.bench.epoch))
        rate = 0.0 if self.first or self.bench.timings else self.bench.rate
        limit = self.bench.first_limit(seconds)
        start = partial(self.bench.processes.start, epoch=self.bench.epoch)
        return self.begin(start(self.what_ifs, seconds, rate, first_limit_seconds=limit))

    def _with_saved_timings(self, trace: Trace) -> Trace:
        if self.bench.timings is None:
            return trace
        return self.bench.timings.replace(trace, [what_if.name for what_if in self.what_ifs])


class ScriptBench:
    """Runs one script with what-ifs. processes: already entered.

    losses, rate: the first losses and the images/s of the script as it is, known after `watch`;
    epoch: measured as a whole from then on, where more than its steps takes time; until: the moment
    by which all is to be over: a trial that has no step in half of the time left is given up.
    """

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.tree = parse_script(processes.script)
        self.timings = read_saved_timings()
        self.losses: list[float] = []
        self.rate = 0.0
        self.item: ItemFacts | None = None
        self.epoch: Epoch | None = None
        self.until = math.inf
        self.startup_seconds = 0.0

    def watch(self, seconds: float, timeline: Path | None = None) -> tuple[Trace, ScriptTrial]:
        """Run the script as it is for so long; its trace, and the trial that can go on.

        timeline: a file for it. Raises ScriptFailed.
        """
        until = time.monotonic() + self.processes.limit_seconds  # also if it is started twice
        self.processes.prepare(is_late=not torch.accelerator.is_available())
        plain, trace = ScriptTrial(self, ()), None

        def start() -> ScriptProcess:
            left = max(seconds + _LEAST_SECONDS, until - time.monotonic())
            return self.processes.start(
                seconds=seconds, is_full=True, timeline=timeline, first_limit_seconds=left
            )

        try:
            trace = plain.begin(start())
        except ScriptFailed:
            if time.monotonic() > until or not self.processes.forget_servers():
                raise
        if trace is None:  # perhaps it only dislikes being forked
            trace = plain.begin(start())
        self.item = trace.item
        if trace.loader and not trace.loader.is_shuffled:  # it cannot be told by its arguments
            self.processes.training = trace.loader.site
        self.losses, self.rate = trace.losses, trace.images_per_second
        self.startup_seconds = trace.startup_seconds
        return trace, plain

    def first_limit(self, seconds: float) -> float:
        """In seconds, until the first window of a trial is over, which is to last so many."""
        if self.epoch:
            seconds = max(seconds, 2 * self.epoch.seconds)  # one of them is a warm-up
        least = 2 * self.startup_seconds + seconds + _LEAST_SECONDS
        left = (self.until - time.monotonic()) / 2
        return min(self.processes.limit_seconds, max(least, left))

    def worth(self, trial: ScriptTrial) -> list[WhatIf]:
        """The what-ifs that could make this trial faster, by where its own time goes."""
        if trial.first is None:
            return []
        trace = replace(trial.first, item=self.item)
        return what_ifs_for(Seen(trace, self.tree, usable_cores()))

    def open(self, changes: WhatIfs) -> ScriptTrial:
        """A trial with these changes."""
        return ScriptTrial(self, changes)


def _problem(what_ifs: WhatIfs, said: str) -> str:
    """Why a script failed, in one line."""
    reasons = (one.failure(said) for one in what_ifs)
    return next((reason for reason in reasons if reason), said.splitlines()[-1])


def compare_losses(
    plain: list[float], changed: list[float], what_ifs: WhatIfs, notes: list[str]
) -> Losses:
    """Whether the first losses are the same numbers, or at least show the same training."""
    pairs = [one for one in zip(plain, changed, strict=False) if math.isfinite(one[0])]
    if not all(math.isfinite(loss) for _, loss in pairs):
        return "other"
    if notes or not pairs or not all(one.keeps_batches for one in what_ifs):
        return "not comparable"
    worst = max(abs(one - other) / max(abs(one), 1e-6) for one, other in pairs)
    if worst <= _SAME:
        return "same"
    if worst <= _CLOSE:
        return "close"
    means = [statistics.mean(values) for values in zip(*pairs, strict=True)]
    return "alike" if abs(means[0] - means[1]) <= _ALIKE * abs(means[0]) else "other"
