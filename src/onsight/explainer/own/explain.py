"""What holds a run of Onsight back, and which flags would help: each applied and timed."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.data.sources.source import is_memory_name
from onsight.errors import OutputError
from onsight.explainer.busy import warn_if_busy
from onsight.explainer.compare.candidates import Candidate
from onsight.explainer.compare.rounds import OUT_OF_MEMORY, ROUNDS, Cell, run_rounds, warm_up
from onsight.explainer.gain import combine
from onsight.explainer.own.changes import FlagChange, flag_changes
from onsight.explainer.own.record import StepRecord, record_step
from onsight.explainer.tracing.timeline import write_timelines
from onsight.hardware.allocator import keep_freed_memory
from onsight.hardware.ceilings import Ceilings, measure_ceilings
from onsight.hardware.devices import choose_device
from onsight.hardware.memory import is_out_of_memory
from onsight.hardware.reproducible import KERNELS
from onsight.models.file import load_model_file
from onsight.report.console import Reporter
from onsight.training.auto.choose_model import with_net_from_scratch
from onsight.training.autotune.trial import Trial
from onsight.training.pictures.training_data import TrainingData
from onsight.training.plan import choose_threads
from onsight.training.prepare import prepare


@dataclass(frozen=True)
class FlagTried:
    """What other flags gave. ratio: to the run as it is, both timed in turns."""

    change: FlagChange
    images_per_second: float
    ratio: float
    problem: str = ""

    @property
    def groups(self) -> set[str]:
        """The fields that it changes."""
        return set(self.change.fields)


@dataclass(frozen=True)
class OwnExplanation:
    """Everything found out about a run's step. after: recorded with the best flags applied."""

    config: Config
    shape: tuple[int, int, int]
    device: torch.device
    before: StepRecord
    ceilings: Ceilings
    tried: list[FlagTried]
    best: FlagTried | None
    after: StepRecord | None


def explain_data(
    data: str,
    config: Config,
    seconds: float = 3.0,
    try_changes: bool = True,
    reporter: Reporter | None = None,
    trace_file: Path | None = None,
) -> OwnExplanation:
    """Record the training step of `onsight train DATA` with this config, then try other flags.

    seconds: of training to record; trace_file: to write its timeline into. Raises
    UserError for what the user can fix.
    """
    reporter = reporter or Reporter()
    device = choose_device(config.device.partition(",")[0])
    threads = choose_threads(config.threads)
    warn_if_busy(reporter)
    keep_freed_memory()  # as a run does
    # What is replayed as a graph has no phases to be seen.
    config = config.model_copy(update={"cuda_graph": "off"})
    with KERNELS[config.kernels](threads.value):
        prepared = prepare(with_net_from_scratch(config), data, device, threads, reporter)
        size = min(prepared.config.batch_size, len(prepared.dataset.ids(TRAIN)))
        config = prepared.config.model_copy(update={"batch_size": size})
        bench = _Bench(config, prepared.data, seconds, reporter)
        before = bench.record(config, trace_file is not None)
        if trace_file and before.timeline:
            said = write_timelines(trace_file, f"onsight train {data}", [before.timeline])
            reporter.say(f"{trace_file}: {said}; open it at ui.perfetto.dev or chrome://tracing")
        tried, best = bench.try_flags() if try_changes else ([], None)
        after = bench.record(bench.config_with(best.change)) if best else None
        ceilings = measure_ceilings(device.value, config.threads)
    channels, height, width = prepared.dataset.input_shape
    shape = (height, width, channels)
    return OwnExplanation(config, shape, device.value, before, ceilings, tried, best, after)


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
            "such pictures instead, with --config for the run's settings"
        )
    return data


class _Bench:
    """Times the run's step, as it is and with other flags."""

    def __init__(
        self, config: Config, data: TrainingData, seconds: float, reporter: Reporter
    ) -> None:
        self.config, self.data = config, data
        self.seconds, self.reporter = seconds, reporter

    def config_with(self, change: FlagChange) -> Config:
        return self.config.model_copy(update=change.fields)

    def record(self, config: Config, has_timeline: bool = False) -> StepRecord:
        """Where the time of a step goes."""
        former = torch.get_num_threads()
        torch.set_num_threads(config.threads)
        try:
            trial = Trial(config, self.data)
            return record_step(trial, config.batch_size, self.seconds, has_timeline)
        finally:
            torch.set_num_threads(former)

    def try_flags(self) -> tuple[list[FlagTried], FlagTried | None]:
        """Each change alone, then the best together; the best of all if it is faster."""
        changes = flag_changes(self.config, self.data, self.data.new_network(self.config))
        tried = self._time(changes)
        return tried, combine(tried, self._time_both, len(tried))

    def _time_both(self, best: FlagTried, other: FlagTried) -> FlagTried:
        (both,) = self._time([best.change.with_(other.change)])
        return both

    def _time(self, changes: list[FlagChange]) -> list[FlagTried]:
        """Time each in turns with the run as it is."""
        cells = [self._cell(FlagChange({})), *map(self._cell, changes)]
        able = [cell for cell in cells if not cell.problem]
        with self.reporter.bar("what if", len(able) * (ROUNDS + 1), "timings") as bar:
            warm_up(able, lambda: bar.advance(1))
            run_rounds(able, lambda: bar.advance(1))
        plain = cells[0].images_per_second
        return [
            FlagTried(change, 0.0, 0.0, cell.problem)
            if cell.problem
            else FlagTried(change, cell.images_per_second, cell.images_per_second / plain)
            for change, cell in zip(changes, cells[1:], strict=True)
        ]

    def _cell(self, change: FlagChange) -> Cell:
        config = self.config_with(change)
        candidate = Candidate(change.flags, self.data.device, config.threads, config.precision)
        try:
            seconds = Trial(config, self.data).at(config.batch_size)
            seconds(1)
        except RuntimeError as error:
            if not change.fields:
                raise
            why = OUT_OF_MEMORY if is_out_of_memory(error) else str(error).splitlines()[0]
            return Cell(candidate, config.batch_size, lambda steps: math.inf, problem=why)
        return Cell(candidate, config.batch_size, seconds)
