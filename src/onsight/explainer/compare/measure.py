"""Which candidate trains fastest at which batch size, measured with a run's own training step."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.errors import DeviceError
from onsight.explainer.compare.candidates import Candidate, choose_candidates
from onsight.explainer.compare.fit import Fit, fit_costs
from onsight.explainer.compare.rounds import ROUNDS, Cell, run_rounds, warm_up
from onsight.explainer.compare.sizes import choose_batch_sizes, second_size
from onsight.hardware.devices import describe_device
from onsight.hardware.memory import keep_freed_memory
from onsight.hardware.reproducible import KERNELS
from onsight.report.console import Reporter
from onsight.training.auto.choose_model import with_net_from_scratch
from onsight.training.autotune.trial import Trial
from onsight.training.images.open_data import find_data, open_data
from onsight.training.images.residency import choose_residency
from onsight.training.images.training_data import place
from onsight.training.plan import choose_threads
from onsight.training.step.optim import choose_learning_rate
from onsight_explain.devices import is_out_of_memory
from onsight_explain.paired_timing import warn_if_busy


@dataclass(frozen=True)
class Comparison:
    """What was measured: one cell for each batch size (ascending) and candidate.

    shape: (height, width, channels) of the model's input in pixels.
    """

    model: str
    shape: tuple[int, int, int]
    candidates: list[Candidate]
    batch_sizes: list[int]
    cells: list[Cell]

    def row(self, batch_size: int) -> list[Cell]:
        """The cells of one batch size, in the order of the candidates."""
        return [cell for cell in self.cells if cell.batch_size == batch_size]

    def ratio(self, cell: Cell) -> float | None:
        """A cell's speed relative to the first candidate's at that batch size; None if unknown."""
        first = self.row(cell.batch_size)[0]
        if first.problem or cell.problem:
            return None
        return first.step_seconds / cell.step_seconds

    @cached_property
    def fits(self) -> dict[str, Fit | None]:
        """The costs of a step by candidate name; None if too few sizes were timed."""
        return {candidate.name: self._fit(candidate) for candidate in self.candidates}

    def _fit(self, candidate: Candidate) -> Fit | None:
        timed = [one for one in self.cells if one.candidate == candidate and not one.problem]
        return fit_costs({cell.batch_size: cell.step_seconds for cell in timed})


def compare(
    data: str,
    config: Config,
    devices: Sequence[str] = (),
    batch_sizes: Sequence[int] = (),
    reporter: Reporter | None = None,
) -> Comparison:
    """Time the training step of a run with this config on each device at each batch size.

    Without devices: the CPU and every accelerator; if there is only the CPU, its thread counts
    and precisions. Raises UserError for what the user can fix.
    """
    reporter = reporter or Reporter()
    candidates = choose_candidates(devices, config)
    config = with_net_from_scratch(config)
    config = config.model_copy(update={"learning_rate": choose_learning_rate(config).value})
    for device in dict.fromkeys(candidate.device for candidate in candidates):
        reporter.say(f"{device}: {describe_device(device)}; torch {torch.__version__}")
    warn_if_busy(reporter)
    threads = choose_threads(config.threads)
    keep_freed_memory()  # as a run does
    with KERNELS[config.kernels](threads.value):
        source = find_data(data, config, reporter)
        opened = open_data(source, config, candidates[0].device, threads.value, reporter)
        config, dataset = opened.config, opened.dataset
        sizes = _choose_sizes(batch_sizes, config, len(dataset.ids(TRAIN)), reporter)
        reporter.say(f"timing {config.model} at batch {', '.join(f'{size:,}' for size in sizes)}")
        trials = _make_trials(candidates, config, dataset, sizes[0], reporter)
        cells = [Cell(one, size, trial.at(size)) for size in sizes for one, trial in trials.items()]
        _time(cells, reporter)
    channels, height, width = dataset.input_shape
    return Comparison(config.model, (height, width, channels), list(trials), sizes, cells)


def _choose_sizes(
    asked: Sequence[int], config: Config, images: int, reporter: Reporter
) -> list[int]:
    sizes = choose_batch_sizes(asked, config.batch_size, images)
    other = second_size(sizes[0], images) if len(sizes) == 1 else None
    if other:
        reporter.say(
            f"batch {other} is timed too: one size cannot separate the two costs of a step"
        )
        sizes = sorted([*sizes, other])
    return sizes


def _make_trials(
    candidates: list[Candidate], config: Config, dataset: Dataset, smallest: int, reporter: Reporter
) -> dict[Candidate, Trial]:
    trials = {}
    for candidate in candidates:
        try:
            trial = _make_trial(candidate, config, dataset)
            if candidate.tentative:
                trial.at(smallest)(1)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise DeviceError(
                    f"{candidate.device} has too little free memory even for the network and the "
                    "first batch: stop what else uses it, or leave it out of --compare"
                ) from error
            if not candidate.tentative:
                raise
            reporter.warn(f"{candidate.name} is left out: {config.model} fails there ({error})")
            continue
        trials[candidate] = trial
    return trials


def _make_trial(candidate: Candidate, config: Config, dataset: Dataset) -> Trial:
    """The candidate's training, with the images where a run on its device would keep them."""
    device = candidate.device
    fields = {"threads": candidate.threads, "precision": candidate.precision}
    shared = device.type == "cpu" and config.residency == "auto"  # one map for all candidates
    where = "map" if shared else config.residency
    residency = choose_residency(dataset.images, device, where).value
    placed = place(dataset, config, device, residency)
    return Trial(config.model_copy(update=fields), placed)


def _time(cells: list[Cell], reporter: Reporter) -> None:
    with reporter.bar("warm up", len(cells), "timings") as bar:
        warm_up(cells, lambda: bar.advance(1))
    with reporter.bar("time", len(cells) * ROUNDS, "timings") as bar:
        run_rounds(cells, lambda: bar.advance(1))
