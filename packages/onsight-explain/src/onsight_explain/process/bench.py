"""The bench for scripts: each trial is a process that runs the script with some what-ifs."""

import dataclasses
import math
import os
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onsight_explain.errors import ScriptFailed
from onsight_explain.json_dataclasses import from_json
from onsight_explain.process.processes import Processes, ScriptProcess
from onsight_explain.script.source import parse_script
from onsight_explain.script.trace import ItemFacts, Trace
from onsight_explain.search import Losses, TrialFailed
from onsight_explain.threads import usable_cores
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.what_if import Baseline, WhatIf, choose_what_ifs

_MIN_SECONDS = 2.0  # time beyond the window, for a script that starts slowly
_SAME, _CLOSE, _ALIKE = 1e-3, 0.02, 0.1  # relative differences of losses

_TIMINGS_VARIABLE = "ONSIGHT_SAVED_TIMINGS"
_SAVED_STEPS = 100
_SAVED_LOSSES = 16

WhatIfs = tuple[WhatIf, ...]


class ScriptTrial:
    """A trial whose process starts at the first measurement, and again after it has ended."""

    def __init__(self, bench: "ScriptBench", what_ifs: WhatIfs) -> None:
        self.bench, self.what_ifs = bench, what_ifs
        self.process: ScriptProcess | None = None
        self.first: Trace | None = None
        self.limit_seconds = bench.processes.limit_seconds  # from its start to its first step

    def begin(self, process: ScriptProcess) -> Trace:
        """Continue with a running process, and store its first trace. Raises ScriptFailed."""
        self.process = process
        trace = self._with_saved_timings(process.trace())
        self.first = self.first or trace
        return trace

    def measure(self, seconds: float) -> float:
        """Train for about this long and return images/s. Raises TrialFailed."""
        try:
            trace = self._window(seconds)
            if trace.ended == "script" and not trace.images:
                trace = self._window(seconds)  # the script was about to end: start it again
        except ScriptFailed as error:
            raise TrialFailed(_failure_line(self.what_ifs, str(error))) from None
        if not trace.images:
            if trace.ended == "script":
                raise TrialFailed("it ended before a training step could be measured")
            is_users = self.limit_seconds >= self.bench.processes.limit_seconds
            hint = ": raise the time limit with --limit" if is_users else ""
            raise TrialFailed(f"no training step in {self.limit_seconds:.0f} s{hint}")
        if self.first and not all(what_if.took_effect(self.first) for what_if in self.what_ifs):
            raise TrialFailed(
                "it changed nothing: the training sets this itself, or does not use it"
            )
        return trace.images_per_second

    def losses(self) -> Losses:
        """Compare the first losses with those of the unchanged script."""
        assert self.first
        return compare_losses(self.bench.losses, self.first.losses, self.what_ifs, self.first.notes)

    def notes(self) -> list[str]:
        """Return remarks on changes that could not be made, or not completely."""
        return self.first.notes if self.first else []

    def close(self) -> None:
        """End the process."""
        if self.process:
            self.process.close()

    def _window(self, seconds: float) -> Trace:
        bench = self.bench
        if self.process and not self.process.is_over:
            return self._with_saved_timings(self.process.measure(seconds, bench.epoch))
        rate = 0.0 if self.first or bench.timings else bench.rate
        limit = self.limit_seconds = bench.first_limit(seconds)
        process = bench.processes.start(
            self.what_ifs, seconds, rate, epoch=bench.epoch, first_limit_seconds=limit
        )
        return self.begin(process)

    def _with_saved_timings(self, trace: Trace) -> Trace:
        if self.bench.timings is None:
            return trace
        return self.bench.timings.replace(trace, [what_if.name for what_if in self.what_ifs])


class ScriptBench:
    """Runs one script with what-ifs, in processes whose context has been entered."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.tree = parse_script(processes.script)
        self.timings = read_saved_timings()
        # Facts about the unchanged script, which `watch` sets.
        self.losses: list[float] = []
        self.rate = 0.0  # images/s
        self.item: ItemFacts | None = None
        self.startup_seconds = 0.0
        self.is_busy = False  # whether other processes keep the machine busy
        # Set if whole epochs must be measured, because they contain more than training steps.
        self.epoch: Epoch | None = None
        # The end of the search: a trial without a step in half of the time left is abandoned.
        self.until = math.inf

    def watch(self, seconds: float, timeline: Path | None = None) -> tuple[Trace, ScriptTrial]:
        """Measure the unchanged script; return its trace and the trial, which can continue.

        timeline: a file to write the timeline to. Raises ScriptFailed.
        """
        until = time.monotonic() + self.processes.limit_seconds  # even if it is started twice
        self.processes.prepare(is_late=not torch.accelerator.is_available())
        plain = ScriptTrial(self, ())

        def start() -> ScriptProcess:
            remaining = max(seconds + _MIN_SECONDS, until - time.monotonic())
            return self.processes.start(
                seconds=seconds, is_full=True, timeline=timeline, first_limit_seconds=remaining
            )

        try:
            trace = plain.begin(start())
        except ScriptFailed:
            if time.monotonic() > until or not self.processes.forget_servers():
                raise
            trace = plain.begin(start())  # it may fail only in a forked process
        self.item = trace.item
        # Without shuffling, arguments cannot tell the training loader from others.
        if trace.loader and not trace.loader.is_shuffled:
            self.processes.training = trace.loader.site
        self.losses, self.rate = trace.losses, trace.images_per_second
        self.startup_seconds = trace.startup_seconds
        return trace, plain

    def first_limit(self, seconds: float) -> float:
        """Return the time limit for a trial's first window, which is to last `seconds`."""
        if self.epoch:
            seconds = max(seconds, 2 * self.epoch.seconds)  # the first is a warm-up
        needed = 2 * self.startup_seconds + seconds + _MIN_SECONDS
        half_of_rest = (self.until - time.monotonic()) / 2
        return min(self.processes.limit_seconds, max(needed, half_of_rest))

    def candidates(self, trial: ScriptTrial) -> list[WhatIf]:
        """Return the what-ifs that could make this trial faster, by where its time goes."""
        assert trial.first
        trace = dataclasses.replace(trial.first, item=self.item)
        return choose_what_ifs(Baseline(trace, self.tree, usable_cores(), self.is_busy))

    def open(self, changes: WhatIfs) -> ScriptTrial:
        """Return a trial with these changes."""
        return ScriptTrial(self, changes)


def compare_losses(
    plain: list[float], changed: list[float], what_ifs: WhatIfs, notes: list[str]
) -> Losses:
    """Return whether the first losses are the same numbers, or at least show the same training."""
    pairs = [pair for pair in zip(plain, changed, strict=False) if math.isfinite(pair[0])]
    if not all(math.isfinite(loss) for _, loss in pairs):
        return "other"
    if notes or not pairs or not all(what_if.keeps_batches for what_if in what_ifs):
        return "not comparable"
    worst = max(abs(before - after) / max(abs(before), 1e-6) for before, after in pairs)
    if worst <= _SAME:
        return "same"
    if worst <= _CLOSE:
        return "close"
    means = [statistics.mean(values) for values in zip(*pairs, strict=True)]
    return "alike" if abs(means[0] - means[1]) <= _ALIKE * abs(means[0]) else "other"


def _failure_line(what_ifs: WhatIfs, message: str) -> str:
    """Return the reason of a script's failure as one line."""
    reasons = (what_if.explain_failure(message) for what_if in what_ifs)
    return next((reason for reason in reasons if reason), message.splitlines()[-1])


@dataclass(frozen=True)
class SavedTimings:
    """Timings that replace measured ones, so that two versions of `explain` can be compared.

    The scripts still run, with and without each change, but every figure that depends on a clock
    comes from the JSON file that ONSIGHT_SAVED_TIMINGS names.
    """

    step_seconds: float
    phases: dict[str, float]  # shares of the time
    item_seconds: float = 0.0  # time to load one item of the dataset
    # How many times as fast a change makes the steps, by its name in --json; 1 for all others.
    speedups: dict[str, float] = field(default_factory=dict)

    def replace(self, trace: Trace, changes: list[str]) -> Trace:
        """Return the trace of a window as if it had taken the saved time, with these changes."""
        if not trace.images:
            return trace
        seconds = _SAVED_STEPS * self.step_seconds
        for name in changes:
            seconds /= self.speedups.get(name, 1.0)
        batch_size = round(trace.images / trace.steps)
        item = trace.item and dataclasses.replace(
            trace.item, seconds=self.item_seconds, waiting_share=0.0, transform_share=0.9
        )
        return dataclasses.replace(
            trace,
            startup_seconds=1.0,
            seconds=seconds,
            steps=_SAVED_STEPS,
            images=_SAVED_STEPS * batch_size,
            evaluated=0,
            epochs=0,
            phases={name: share * seconds for name, share in self.phases.items()},
            item=item,
            losses=trace.losses[:_SAVED_LOSSES],
            reads=[
                dataclasses.replace(reads, per_step=round(reads.per_step, 0))
                for reads in trace.reads
            ],
            graphs_kept=min(trace.graphs_kept, 1),
            bytes=round(trace.bytes, -4),  # the count varies by some bytes
        )


def read_saved_timings() -> SavedTimings | None:
    """Read the file that the environment variable names, if it is set."""
    path = os.environ.get(_TIMINGS_VARIABLE)
    return from_json(SavedTimings, Path(path).read_bytes()) if path else None
