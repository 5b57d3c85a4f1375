"""Explain a run of Onsight: record its training step, then apply and time other flags."""

import math
import statistics
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.data.sources.find import refuse_remote
from onsight.data.sources.source import is_memory_name
from onsight.errors import ConfigError, DataError, OutputError
from onsight.explainer.bench import (
    FreshRun,
    RunBench,
    RunChange,
    UnsetVariables,
    find_unset,
    thread_settings,
)
from onsight.explainer.head_run import has_training_steps
from onsight.explainer.step_record import StepRecord
from onsight.hardware.devices import choose_device
from onsight.hardware.memory import keep_freed_memory
from onsight.hardware.reproducible import KERNELS
from onsight.models.file import load_model_file
from onsight.report.console import Reporter
from onsight.report.run_files import read_results
from onsight.training.fit_head import uses_fitted_head
from onsight.training.job import Job
from onsight.training.layout import choose_layout, find_data
from onsight.training.open_data import open_data
from onsight.training.place import PlannedRun, place, plan_run
from onsight.tune.candidates import name_one_network
from onsight.tune.plan import choose_threads
from onsight_explain.ceilings import Ceilings, measure_ceilings
from onsight_explain.paired_timing import warn_if_busy
from onsight_explain.search import MIN_GAIN, Search, SearchResult, TrialResult
from onsight_explain.search_table import describe_noise, noise_ratio
from onsight_explain.tracing.timeline import write_timeline

_RECORDING_FRACTION = 0.05  # fraction of the budget, per recording (before and after)
_WINDOW_SECONDS = 0.25  # length of one measurement


@dataclass(frozen=True)
class RunExplanation:
    """The measurements of a run's training step."""

    config: Config
    shape: tuple[int, int, int]  # (height, width, channels) of the input
    device: torch.device
    before: StepRecord
    ceilings: Ceilings
    search: SearchResult[RunChange]
    best: TrialResult[RunChange] | None  # if it is more than a little faster
    after: StepRecord | None  # a record with the best flags applied
    settings: UnsetVariables | None = None  # OpenMP variables set in the environment
    noise: str = ""  # why timings cannot show more than what certainly gained, or ""
    noise_ratio: float = math.inf  # how many times too long noise may have made a phase

    @property
    def rate(self) -> float:
        """Images/s of the unchanged run: the median of its windows."""
        return statistics.median(self.search.baseline_rates or [self.before.images_per_second])


def explain_data(
    data: str,
    config: Config,
    seconds: float,
    try_changes: bool,
    reporter: Reporter,
    trace_file: Path | None = None,
) -> RunExplanation:
    """Record the training step of `onsight train DATA` with this config, then try other flags.

    seconds: maximum for everything but preparing the images; trace_file: where to write the
    timeline of the unchanged run. Raises UserError for what the user can fix.
    """
    is_busy = warn_if_busy(reporter)
    settings = thread_settings()
    fresh = FreshRun(data, config, settings) if settings else None
    with (
        open_run(data, config, reporter) as run,
        closing(RunBench(run.config, run.data, fresh, is_busy)) as bench,
    ):
        record_seconds = _RECORDING_FRACTION * seconds
        before = bench.record((), record_seconds, has_timeline=trace_file is not None)
        if trace_file and before.timeline:
            name = f"onsight train {data}"
            reporter.say(write_timeline(trace_file, name, before.timeline))
        found: SearchResult[RunChange] = SearchResult([], None, [], [])
        if try_changes:
            unchanged = bench.open(())
            remaining = seconds - 2 * record_seconds
            search = Search[RunChange](bench, unchanged, remaining, _WINDOW_SECONDS, reporter)
            found = search.run(bench.candidates(unchanged))
        best = found.best if found.best and found.best.ratio >= MIN_GAIN else None
        applies_here = best and not find_unset(best.changes)  # not only in a child process
        after = bench.record(best.changes, record_seconds) if best and applies_here else None
        ceilings = measure_ceilings(run.data.device, run.config.threads)
    channels, height, width = run.dataset.input_shape
    return RunExplanation(
        config=run.config,
        shape=(height, width, channels),
        device=run.data.device,
        before=before,
        ceilings=ceilings,
        search=found,
        best=best,
        after=after,
        settings=settings,
        noise=describe_noise(found, is_busy),
        noise_ratio=noise_ratio(found, is_busy),
    )


@contextmanager
def open_run(data: str, config: Config, reporter: Reporter) -> Iterator[PlannedRun]:
    """Prepare the run that `onsight train DATA` would start, without training it.

    Raises UserError for what the user can fix.
    """
    device = choose_device(config.device.partition(",")[0])
    threads = choose_threads(config.threads)
    keep_freed_memory()  # as a run does
    # The phases inside a CUDA graph cannot be recorded.
    config = config.model_copy(update={"cuda_graph": "off"})
    with KERNELS[config.kernels](threads.value):
        job = Job(reporter, device, threads)
        planned = plan_without_training(data, name_one_network(config), job)
        size = min(planned.config.batch_size, len(planned.dataset.ids(TRAIN)))
        yield replace(planned, config=planned.config.model_copy(update={"batch_size": size}))


def plan_without_training(data: str, config: Config, job: Job) -> PlannedRun:
    """Go through the stages of a run up to its plan. Raises ConfigError if no step is trained."""
    source = find_data(data, config, job)
    job.reporter.choice("device", job.device, is_detail=False)
    layout = choose_layout(source, config, job)
    placed = place(open_data(layout, None, job), None, job)
    config = placed.config
    if config.freeze and uses_fitted_head(config, placed.data.new_network(config)):
        raise ConfigError(
            f"{config.model} stays frozen, and only a head is fitted on its features: there are no "
            "training steps to explain. --no-freeze explains fine-tuning"
        )
    return plan_run(placed, job)


def find_config(run: Path) -> Path:
    """Return the settings of a run, or of the network of several that counts most in its model.

    A head, which has no training step to explain, comes last. Networks without a weight, and those
    that were chosen but not trained, do not count.
    """
    folders = {folder.name: folder for folder in run.glob("members/*")}
    rows = [row for row in read_results(run)["members"] or [] if row["name"] in folders]
    ranked = sorted((row for row in rows if row["weight"] > 0), key=lambda row: -row["weight"])
    found = [folders[row["name"]] for row in ranked]
    found = [folder for folder in found if (folder / "config.toml").is_file()]
    return next(filter(has_training_steps, found), (found or [run])[0]) / "config.toml"


def data_of_run(run: Path, data_format: str) -> str:
    """Return the DATA that a finished run was trained on, if it is here. Raises OutputError."""
    model = run / "model.safetensors"
    if not model.is_file():
        raise OutputError(
            f"{run} is not a finished run: it has no model.safetensors, so its dataset is unknown. "
            "Pass the dataset instead, and --config for the run's settings"
        )
    data = str(load_model_file(model).provenance.get("data", ""))
    if not data:
        raise OutputError(f"{model} does not name its dataset: pass the dataset instead of {run}")
    if is_memory_name(data):
        raise OutputError(
            f"{run} was trained on {data}, which no command can read again. Pass a dataset "
            "with such images instead, and --config for the run's settings"
        )
    try:
        refuse_remote(data, data_format)
    except DataError as error:
        raise OutputError(f"{error}, instead of {run}, with --config for its settings") from error
    return data
