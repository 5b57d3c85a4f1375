"""What holds a run of Onsight back, and which flags would help: each applied and timed."""

import statistics
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from onsight.config import Config
from onsight.data.sources.source import is_memory_name
from onsight.errors import OutputError
from onsight.explainer.own.bench import RunBench
from onsight.explainer.own.changes import RunChange, Unset, settings_of_threads, unset_among
from onsight.explainer.own.fresh import FreshRun
from onsight.explainer.own.opening import opened
from onsight.explainer.own.record import StepRecord
from onsight.models.file import load_model_file
from onsight.report.console import Reporter
from onsight_explain.ceilings import Ceilings, measure_ceilings
from onsight_explain.paired_timing import warn_if_busy
from onsight_explain.search import MIN_GAIN, Search, SearchResult, TrialResult
from onsight_explain.tracing.timeline import write_timeline

_RECORDED = 0.05  # of the time, in which the step is recorded, as it is and with the best flags
_WINDOW_SECONDS = 0.25  # of one measurement


@dataclass(frozen=True)
class OwnExplanation:
    """Everything found out about a run's step. after: recorded with the best flags applied.

    rates: images/s of the run as it is, beside each change; settings: of threads, in the
    environment.
    """

    config: Config
    shape: tuple[int, int, int]
    device: torch.device
    before: StepRecord
    ceilings: Ceilings
    tried: list[TrialResult[RunChange]]
    best: TrialResult[RunChange] | None
    left_out: list[RunChange]
    rates: list[float]
    after: StepRecord | None
    settings: Unset | None = None

    @property
    def rate(self) -> float:
        """images/s of the run as it is: the median of its windows."""
        return statistics.median(self.rates or [self.before.images_per_second])


def explain_data(
    data: str,
    config: Config,
    seconds: float = 60.0,
    try_changes: bool = True,
    reporter: Reporter | None = None,
    trace_file: Path | None = None,
) -> OwnExplanation:
    """Record the training step of `onsight train DATA` with this config, then try other flags.

    seconds: for all of it but preparing the images, at most; trace_file: to write the timeline of
    the run as it is into. Raises UserError for what the user can fix.
    """
    reporter = reporter or Reporter()
    warn_if_busy(reporter)
    settings = settings_of_threads()
    fresh = FreshRun(data, config, settings) if settings else None
    with (
        opened(data, config, reporter) as run,
        closing(RunBench(run.config, run.data, fresh)) as bench,
    ):
        recorded = _RECORDED * seconds
        before = bench.record((), recorded, has_timeline=trace_file is not None)
        if trace_file and before.timeline:
            name = f"onsight train {data}"
            reporter.say(write_timeline(trace_file, name, before.timeline))
        found: SearchResult[RunChange] = SearchResult([], None, [], [])
        if try_changes:
            plain = bench.open(())
            left = seconds - 2 * recorded
            race = Search[RunChange](bench, plain, left, _WINDOW_SECONDS, reporter)
            found = race.run(bench.candidates(plain))
        best = found.best if found.best and found.best.ratio >= MIN_GAIN else None
        is_here = best and not unset_among(best.changes)  # and not in another process
        after = bench.record(best.changes, recorded) if best and is_here else None
        ceilings = measure_ceilings(run.device, run.config.threads)
    channels, height, width = run.data.dataset.input_shape
    shape = (height, width, channels)
    return OwnExplanation(
        run.config,
        shape,
        run.device,
        before,
        ceilings,
        found.results,
        best,
        found.skipped,
        found.baseline_rates,
        after,
        settings,
    )


def data_of_run(run: Path) -> str:
    """The DATA that a finished run was trained on. Raises OutputError."""
    model = run / "model.safetensors"
    if not model.is_file():
        raise OutputError(
            f"{run} is not a finished run: it has no model.safetensors to say what it was trained "
            "on. Name the DATA instead, with --config for the run's settings"
        )
    data = str(load_model_file(model).provenance["data"])
    if is_memory_name(data):
        raise OutputError(
            f"{run} was trained on {data}, which no command can read again. Name DATA with "
            "such images instead, with --config for the run's settings"
        )
    return data
