"""Measure which device trains fastest at which batch size, with the run's training step.

On a machine with only a CPU, thread counts and precisions are compared instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.errors import ConfigError, DeviceError
from onsight.explainer.rounds import (
    ROUNDS,
    DeviceCandidate,
    TimedCell,
    run_rounds,
    speed_ratio,
    warm_up,
)
from onsight.explainer.step_costs import StepCosts, fit_costs
from onsight.hardware.devices import choose_device, describe_device
from onsight.hardware.memory import keep_freed_memory
from onsight.hardware.reproducible import KERNELS
from onsight.report.console import Reporter
from onsight.text import plural
from onsight.training.job import Job
from onsight.training.layout import choose_layout, find_data
from onsight.training.open_data import open_data
from onsight.tune.candidates import name_one_network
from onsight.tune.plan import choose_precision, choose_threads
from onsight.tune.training_data import choose_residency, place_data
from onsight.tune.trial import Trial
from onsight_explain.devices import available_devices, is_out_of_memory
from onsight_explain.paired_timing import RatioInterval, warn_if_busy

_DEFAULT_SIZES = (4, 32, 128, 512)


@dataclass(frozen=True)
class DeviceComparison:
    """The measurements: one cell for each batch size (ascending) and candidate."""

    model: str
    shape: tuple[int, int, int]  # (height, width, channels) of the input
    candidates: list[DeviceCandidate]
    batch_sizes: list[int]
    cells: list[TimedCell]

    def row(self, batch_size: int) -> list[TimedCell]:
        """Return the cells of one batch size, in the order of the candidates."""
        return [cell for cell in self.cells if cell.batch_size == batch_size]

    def ratio(self, cell: TimedCell) -> RatioInterval | None:
        """Return a cell's speed relative to the first candidate's, or None if unknown."""
        first = self.row(cell.batch_size)[0]
        if first.problem or cell.problem:
            return None
        return speed_ratio(cell, first)

    @cached_property
    def costs(self) -> dict[str, StepCosts | None]:
        """The fitted costs of a step by candidate name; None if too few sizes were timed."""
        return {candidate.name: self._fit(candidate) for candidate in self.candidates}

    def _fit(self, candidate: DeviceCandidate) -> StepCosts | None:
        cells = [cell for cell in self.cells if cell.candidate == candidate and not cell.problem]
        return fit_costs({cell.batch_size: cell.step_seconds for cell in cells})


def compare_devices(
    data: str,
    config: Config,
    devices: Sequence[str],
    batch_sizes: Sequence[int],
    reporter: Reporter,
) -> DeviceComparison:
    """Time the training step of a run with this config on each device at each batch size.

    Without devices: the CPU and every accelerator; with only a CPU, its thread counts and
    precisions. Raises UserError for what the user can fix.
    """
    candidates = choose_candidates(devices, config)
    config = name_one_network(config)
    for device in dict.fromkeys(candidate.device for candidate in candidates):
        reporter.say(f"{device}: {describe_device(device)}; torch {torch.__version__}")
    warn_if_busy(reporter)
    threads = choose_threads(config.threads)
    keep_freed_memory()  # as a run does
    with KERNELS[config.kernels](threads.value):
        first = Choice(candidates[0].device, "the first to compare")
        job = Job(reporter, first, threads)
        layout = choose_layout(find_data(data, config, job), config, job)
        opened = open_data(layout, None, job)
        config, dataset = opened.config, opened.dataset
        sizes = _choose_sizes(batch_sizes, config, len(dataset.ids(TRAIN)), reporter)
        reporter.say(f"timing {config.model} at batch {', '.join(f'{size:,}' for size in sizes)}")
        trials = _make_trials(candidates, config, dataset, sizes[0], reporter)
        cells = [
            TimedCell(candidate, size, trial.timer(size))
            for size in sizes
            for candidate, trial in trials.items()
        ]
        _time(cells, reporter)
    channels, height, width = dataset.input_shape
    return DeviceComparison(config.model, (height, width, channels), list(trials), sizes, cells)


# --- What is compared ---


def choose_candidates(devices: Sequence[str], config: Config) -> list[DeviceCandidate]:
    """Return the candidates for these devices, or else for the CPU and every accelerator.

    Raises DeviceError for a device that is not there, ConfigError for a device named twice.
    """
    chosen = [choose_device(name).value for name in devices or _default_devices(config.device)]
    for device in chosen:
        if chosen.count(device) > 1:
            raise ConfigError(f"--compare names {device} twice; name each device once")
    threads = choose_threads(config.threads).value
    if all(device.type == "cpu" for device in chosen):
        return _cpu_candidates(config, threads)
    return [
        DeviceCandidate(
            str(device), device, threads, choose_precision(config.precision, device).value
        )
        for device in chosen
    ]


def parse_batch_sizes(text: str) -> list[int]:
    """Parse batch sizes such as 4,32. Raises ConfigError."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"--batch-sizes {text}: give whole numbers separated by commas, such as 4,32,128"
        ) from error


def choose_batch_sizes(requested: Sequence[int], own: int, images: int) -> list[int]:
    """Return the requested batch sizes, or else the default ones and the config's, ascending.

    images: the number of training images. Raises ConfigError for a size below 1, one given twice,
    or one larger than the training set.
    """
    if not requested:
        return sorted({min(size, images) for size in (*_DEFAULT_SIZES, own)})
    for size in requested:
        if size < 1:
            raise ConfigError(f"--batch-sizes: {size} is not a batch size; it must be at least 1")
        if requested.count(size) > 1:
            raise ConfigError(f"--batch-sizes names {size} twice; name each size once")
        if size > images:
            raise ConfigError(
                f"--batch-sizes: {size:,} is more than the {images:,} training images"
            )
    return sorted(requested)


def second_batch_size(size: int, images: int) -> int | None:
    """Return a size to time beside a single one, different enough to separate the two costs."""
    other = size // 4 if size >= 8 else min(8 * size, images)
    return other if other != size else None


def _default_devices(device: str) -> list[str]:
    """Return the CPU, then the config's devices, or all available ones."""
    names = available_devices() if device in ("auto", "all") else device.split(",")
    return ["cpu", *(name for name in names if name != "cpu")]


def _cpu_candidates(config: Config, threads: int) -> list[DeviceCandidate]:
    """Return one thread and all threads, each in every precision that the config allows."""
    cpu = torch.device("cpu")
    is_open = config.precision == "auto"
    default = choose_precision(config.precision, cpu).value
    candidates = []
    for precision in (default, "bf16") if is_open else (default,):
        for count in sorted({1, threads}):
            name = plural(count, "thread") + (f" {precision}" if is_open else "")
            tentative = precision != default
            candidates.append(DeviceCandidate(name, cpu, count, precision, tentative))
    return candidates


def _choose_sizes(
    requested: Sequence[int], config: Config, images: int, reporter: Reporter
) -> list[int]:
    sizes = choose_batch_sizes(requested, config.batch_size, images)
    other = second_batch_size(sizes[0], images) if len(sizes) == 1 else None
    if other:
        reporter.say(
            f"batch {other} is timed too: one size cannot separate the two costs of a step"
        )
        sizes = sorted([*sizes, other])
    return sizes


# --- Timing ---


def _make_trials(
    candidates: list[DeviceCandidate],
    config: Config,
    dataset: Dataset,
    smallest: int,
    reporter: Reporter,
) -> dict[DeviceCandidate, Trial]:
    trials = {}
    for candidate in candidates:
        try:
            trial = _make_trial(candidate, config, dataset)
            if candidate.tentative:
                trial.timer(smallest)(1)
        except (RuntimeError, ConfigError) as error:
            if is_out_of_memory(error):
                raise DeviceError(
                    f"{candidate.device} has too little free memory even for the network and the "
                    "first batch: stop other programs on it, or remove it from --compare"
                ) from error
            if not candidate.tentative:
                raise
            reporter.warn(f"{candidate.name} is skipped: {config.model} fails there ({error})")
            continue
        trials[candidate] = trial
    return trials


def _make_trial(candidate: DeviceCandidate, config: Config, dataset: Dataset) -> Trial:
    """Build the candidate's training, with the images where a run on its device has them."""
    device = candidate.device
    fields = {"threads": candidate.threads, "precision": candidate.precision}
    shared = device.type == "cpu" and config.residency == "auto"  # one map for all candidates
    requested = "map" if shared else config.residency
    residency = choose_residency(dataset.images, device, requested).value
    data = place_data(dataset, config, device, residency)
    return Trial(config.model_copy(update=fields), data)


def _time(cells: list[TimedCell], reporter: Reporter) -> None:
    with reporter.bar("warm up", len(cells), "timings") as bar:
        warm_up(cells, lambda: bar.advance(1))
    with reporter.bar("time", len(cells) * ROUNDS, "timings") as bar:
        run_rounds(cells, lambda: bar.advance(1))
