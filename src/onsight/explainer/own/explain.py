"""What holds a run of Onsight back, and which flags would help: each applied and timed."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import torch

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.data.sources.source import is_memory_name
from onsight.errors import OutputError
from onsight.explainer.busy import warn_if_busy
from onsight.explainer.own.bench import RunBench
from onsight.explainer.own.changes import FlagChange
from onsight.explainer.own.record import StepRecord
from onsight.explainer.search.gain import GAIN
from onsight.explainer.search.race import Found, Race
from onsight.explainer.search.tried import Tried
from onsight.hardware.allocator import keep_freed_memory
from onsight.hardware.ceilings import Ceilings, measure_ceilings
from onsight.hardware.devices import choose_device
from onsight.hardware.reproducible import KERNELS
from onsight.models.file import load_model_file
from onsight.report.console import Reporter
from onsight.training.auto.choose_model import with_net_from_scratch
from onsight.training.plan import choose_threads
from onsight.training.prepare import prepare

_RECORDED = 0.05  # of the time, in which the step is recorded, as it is and with the best flags
_WINDOW_SECONDS = 0.25  # of one measurement


@dataclass(frozen=True)
class OwnExplanation:
    """Everything found out about a run's step. after: recorded with the best flags applied.

    rates: pictures/s of the run as it is, beside each change.
    """

    config: Config
    shape: tuple[int, int, int]
    device: torch.device
    before: StepRecord
    ceilings: Ceilings
    tried: list[Tried[FlagChange]]
    best: Tried[FlagChange] | None
    left_out: list[FlagChange]
    rates: list[float]
    after: StepRecord | None

    @property
    def rate(self) -> float:
        """pictures/s of the run as it is: the median of its windows."""
        return statistics.median(self.rates or [self.before.images_per_second])


def explain_data(
    data: str,
    config: Config,
    seconds: float = 60.0,
    try_changes: bool = True,
    reporter: Reporter | None = None,
) -> OwnExplanation:
    """Record the training step of `onsight train DATA` with this config, then try other flags.

    seconds: for all of it but preparing the pictures, at most. Raises UserError for what the user
    can fix.
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
        bench = RunBench(config, prepared.data)
        recorded = _RECORDED * seconds
        before = bench.record((), recorded)
        found: Found[FlagChange] = Found([], None, [], [])
        if try_changes:
            plain = bench.open(())
            left = seconds - 2 * recorded
            race = Race[FlagChange](bench, plain, left, _WINDOW_SECONDS, reporter)
            found = race.run(bench.worth(plain))
        best = found.best if found.best and found.best.ratio >= GAIN else None
        after = bench.record(best.changes, recorded) if best else None
        ceilings = measure_ceilings(device.value, config.threads)
    channels, height, width = prepared.dataset.input_shape
    shape = (height, width, channels)
    return OwnExplanation(
        config,
        shape,
        device.value,
        before,
        ceilings,
        found.tried,
        best,
        found.left_out,
        found.rates,
        after,
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
            "such pictures instead, with --config for the run's settings"
        )
    return data
