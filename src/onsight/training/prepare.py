"""Prepares a run: everything is chosen, decoded, placed and measured, but nothing trained yet."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.data.packing import NO_TIME
from onsight.data.sources.source import Source
from onsight.errors import BudgetTooSmall
from onsight.hardware.devices import describe_device
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.step.fine_tuning import (
    choose_average,
    choose_fine_tuning,
    choose_freezing,
    settle_fine_tuning,
)
from onsight.step.losses import choose_class_weights
from onsight.step.optim import choose_learning_rate
from onsight.training.fit_head import fits_head
from onsight.training.open_data import OpenedData, find_data, open_data
from onsight.training.placement_check import naming_misplaced
from onsight.tune.auto.choose_model import lighter_model, settle_model
from onsight.tune.batch_size import UNLIMITED, Allowed, fit_batch, usual_batch
from onsight.tune.budget import Budget
from onsight.tune.compute import default_options, why_not_graphed
from onsight.tune.fit_epochs import SLOWER, fit_epochs, reserve, time_run
from onsight.tune.fit_images import MOST_DECODING, fit_images, take_images
from onsight.tune.fit_size import evaluated_images
from onsight.tune.pace import Pace
from onsight.tune.plan import ComputePlan, Plan, with_tf32_named
from onsight.tune.planning import choose_compute, choose_inference, unmeasured_plan
from onsight.tune.room import move_if_room
from onsight.tune.training_data import TrainingData, choose_residency, data_key, place
from onsight_explain.devices import has_graphs

_NOTHING_TRAINED = "not measured: the backbone is frozen, and only computes features"
_RANKS_NOT_MEASURED = "not measured: all ranks would have to measure the same"


@dataclass(frozen=True)
class PreparedRun:
    """What a run starts from.

    config: with nothing left open; found: what DATA was recognised as; data_key: a digest of
    images, labels and split; seconds: of each phase.
    """

    config: Config
    plan: Plan
    data: TrainingData
    found: str
    data_key: str
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def dataset(self) -> Dataset:
        """The images with their split."""
        return self.data.dataset

    def for_fold(self, fold: int) -> "PreparedRun":
        """With the switches of this fold alone; 0: of the model that is kept."""
        switches = tuple(switch for switch in self.config.switches if switch.fold == fold)
        return replace(self, config=self.config.model_copy(update={"switches": switches}))


def prepare(
    config: Config,
    data: str | Source,
    device: Choice[torch.device],
    threads: Choice[int],
    reporter: Reporter,
    *,
    world: World | None = None,
    budget: Budget | None = None,
    module: nn.Module | None = None,
    before_decoding: Callable[[Config], None] = lambda config: None,
) -> PreparedRun:
    """Find, decode and place the images of DATA, and decide how each step is computed.

    before_decoding is called with the config as decided by then. Every rank prepares the same.
    Raises UserError for what the user can fix.
    """
    world = world or World()
    seconds: dict[str, float] = {}
    reporter.say(f"{describe_device(device.value)}; torch {torch.__version__}")
    reporter.choice("device", device)
    source = find_data(data, config, reporter)
    with _timed(seconds, "choosing a model"):
        model, chosen = settle_model(
            config, source, device.value, threads.value, reporter, world, budget
        )

    def decode(config: Config) -> _Decoded:
        with _timed(seconds, "decode"):
            return _decode(
                source, config, device.value, threads.value, reporter, before_decoding,
                budget=budget, world=world, module=module,
            )  # fmt: skip

    try:
        decoded = decode(chosen)
    except BudgetTooSmall as error:
        lighter = lighter_model(config, model) if world.size == 1 else None
        if lighter is None:
            raise
        model, chosen = lighter
        reporter.warn(f"{error}: {model.value} is trained from scratch instead")
        decoded = decode(chosen)
    opened, rate, tuning = decoded.opened, decoded.rate, decoded.tuning
    config, dataset = opened.config, opened.dataset
    reporter.choice("split", opened.split)
    reporter.choice("folds", dataset.folds)
    key = data_key(dataset)
    world.check_equal("images", key)
    world.check_equal("free disk space (set --residency to decide)", config.residency)
    images = choose_residency(dataset.images, device.value, config.residency, world.size)
    reporter.choice("images", images)
    ranks = _choose_ranks(dataset, config, device.value, world, reporter)
    weights = choose_class_weights(config.class_weights, torch.from_numpy(dataset.counts(TRAIN)))
    if weights.value != "none":
        reporter.choice("class_weights", weights)
    config = config.model_copy(update={"class_weights": weights.value})
    placed = place(dataset, config, device.value, images.value, module)
    if budget and tuning and opened.pace and world.size == 1:
        each, training = opened.pace.train.per_image, len(dataset.ids(TRAIN))
        freezing = choose_freezing(each, budget.left_seconds, training)
        reporter.choice("freeze", freezing)
        config = config.model_copy(update={"freeze": freezing.value})
        tuning["freeze"] = freezing
    if world.size == 1:
        former = images
        usual = usual_batch(config, len(dataset.ids(TRAIN))).value
        sized = config.model_copy(update={"batch_size": usual})
        images, placed = move_if_room(sized, placed, images, threads.value)
        if images != former:
            reporter.choice("images", images)
    with _timed(seconds, "plan"), naming_misplaced(lambda: placed.new_network(config)):
        if budget:
            batch_size, compute, settled = _fit_training(
                budget, config, placed, opened.pace, threads.value, reporter, world
            )
            config = config.model_copy(update={"batch_size": batch_size.value})
        else:
            batch_size = usual_batch(config, len(dataset.ids(TRAIN)))
            config = config.model_copy(update={"batch_size": batch_size.value})
            compute = _choose_compute(config, placed, threads.value, reporter, world)
            settled = compute.apply(config)
            torch.set_num_threads(settled.threads)
    if tuning and not config.freeze:
        tuning["ema"] = choose_average(config, _steps(settled, dataset, budget))
        settled = settled.model_copy(update={"ema": tuning["ema"].value})
        reporter.choice("ema", tuning["ema"])
    plan = Plan(
        device=device,
        model=model,
        learning_rate=rate,
        batch_size=batch_size,
        image_size=opened.image_size,
        packed_size=dataset.packed_size,
        split=opened.split,
        images=images,
        ranks=ranks,
        class_weights=weights,
        folds=dataset.folds,
        compute=compute,
        fine_tuning=tuning,
        switches=[Choice(switch.model_dump(), "as the config says") for switch in config.switches],
    )
    return PreparedRun(settled, plan, placed, opened.found, key, seconds)


@dataclass(frozen=True)
class _Decoded:
    """The opened images, and what was decided on the way for the model that will be trained."""

    opened: OpenedData
    rate: Choice[float]
    tuning: dict[str, Choice[Any]]


def _decode(
    source: Source,
    config: Config,
    device: torch.device,
    threads: int,
    reporter: Reporter,
    before_decoding: Callable[[Config], None],
    *,
    budget: Budget | None,
    world: World,
    module: nn.Module | None,
) -> _Decoded:
    """Decide what depends on the model, and open as many images as there is time for."""
    tuning = choose_fine_tuning(config)
    config = settle_fine_tuning(config, tuning)
    asked = config.train_images
    if budget:
        cache = find_cache_folder(config.cache_folder)
        config = fit_images(budget, source, config, threads, cache, reporter, world)
    is_drawn = config.train_images != asked and world.size == 1
    source = take_images(source, config)
    rate = choose_learning_rate(config)
    config = config.model_copy(update={"learning_rate": rate.value})
    reporter.choice("learning_rate", rate)
    for name, choice in tuning.items():
        reporter.choice(name, choice)
    with world.local_first("images"):
        opened = open_data(
            source,
            config,
            device,
            threads,
            reporter,
            before_decoding,
            budget=budget,
            world=world,
            module=module,
            decoding_share=MOST_DECODING if is_drawn else math.inf,
        )
    return _Decoded(_with_drawn(opened, reporter), rate, tuning)


def _with_drawn(opened: OpenedData, reporter: Reporter) -> OpenedData:
    """The same, its config naming as many training images as there was time to decode."""
    missed = sum(problem.reason == NO_TIME for problem in opened.dataset.problems)
    if not missed:
        return opened
    count = opened.config.train_images - missed
    reporter.warn(f"budget: decoding took longer than expected: {count:,} training images")
    return replace(opened, config=opened.config.model_copy(update={"train_images": count}))


def _steps(config: Config, dataset: Dataset, budget: Budget | None) -> int:
    """Steps of one training; with a budget, about as many as there is time for."""
    if budget is None:
        return config.epochs * math.ceil(len(dataset.ids(TRAIN)) / config.batch_size)
    folds = dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    return int(budget.left_seconds / max(1e-9, budget.step_seconds) / trainings)


def _fit_training(
    budget: Budget,
    config: Config,
    data: TrainingData,
    pace: Pace | None,
    threads: int,
    reporter: Reporter,
    world: World,
) -> tuple[Choice[int], ComputePlan, Config]:
    """The batch size, the plan and the config with which training fits into a budget."""
    if config.freeze and pace and world.size == 1:
        return _fit_frozen(budget, config, data, pace, threads, reporter, world)
    with budget.trying():
        timing = time_run(budget, config, data, world, pace)
    budget.look()
    reserve(budget, config, data.dataset, timing)
    training = len(data.dataset.ids(TRAIN))
    batch_size = fit_batch(config, timing.train, budget.left_seconds, training)
    reporter.choice("batch_size", batch_size)
    config = config.model_copy(update={"batch_size": batch_size.value})
    allowed = Allowed(budget.trial_seconds, timing.build_seconds, timing.train)
    left = budget.left_seconds
    with budget.trying():
        compute = _choose_compute(config, data, threads, reporter, world, left, allowed)
    settled = compute.apply(config)
    torch.set_num_threads(settled.threads)
    batch = min(config.batch_size, len(data.dataset.ids(TRAIN)))
    rate = compute.images_per_second
    step_seconds = config.batch_size / rate if rate else timing.train.at(batch)
    return batch_size, compute, fit_epochs(budget, settled, data.dataset, step_seconds, reporter)


def _fit_frozen(
    budget: Budget,
    config: Config,
    data: TrainingData,
    pace: Pace,
    threads: int,
    reporter: Reporter,
    world: World,
) -> tuple[Choice[int], ComputePlan, Config]:
    """The same where nothing but a head is fitted: the time is for features and evaluation."""
    with budget.trying():
        compute = _choose_compute(config, data, threads, reporter, world)
    settled = compute.apply(config)
    torch.set_num_threads(settled.threads)
    dataset = data.dataset
    training, validation, test = (len(dataset.ids(one)) for one in (TRAIN, VALIDATION, TEST))
    tested = evaluated_images(config, training, validation, test)
    budget.look()
    budget.reserve(
        tested, 0, SLOWER * pace.judge.per_image
    )  # features of the others count as training
    budget.begin(0.0)
    return usual_batch(config, training), compute, settled


def _choose_compute(
    config: Config,
    data: TrainingData,
    threads: int,
    reporter: Reporter,
    world: World,
    left_seconds: float | None = None,
    allowed: Allowed = UNLIMITED,
) -> ComputePlan:
    """How each step is computed, reported with its reasons."""
    plain = default_options(config, data.device, threads)
    if world.size > 1:
        compute = unmeasured_plan(config, plain, _RANKS_NOT_MEASURED)
    elif config.freeze and fits_head(config, data.new_network(config)):
        compute = choose_inference(config, data, unmeasured_plan(config, plain, _NOTHING_TRAINED))
    else:
        compute = choose_compute(config, data, reporter, left_seconds, allowed)
    compute = with_tf32_named(compute, data.device)
    why_not = why_not_graphed(config, data.device)
    if why_not:
        compute = replace(compute, cuda_graph=replace(compute.cuda_graph, reason=why_not))
    for name, choice in compute.choices().items():
        if name != "cuda_graph" or has_graphs(data.device):
            reporter.choice(name, choice)
    return compute


def _choose_ranks(
    dataset: Dataset, config: Config, device: torch.device, world: World, reporter: Reporter
) -> Choice[int]:
    """The number of ranks; each reports its device and its share of the first batch."""
    if world.size == 1:
        return Choice(1, "one process")
    ids, cpu = dataset.ids(TRAIN), torch.device("cpu")
    loader = Loader(dataset.images, ids, config.batch_size, cpu, world.rank, world.size)
    batch = next(loader.epoch(config.seed, 0))
    share = f"{len(batch.labels)} of the {len(batch.global_labels)} images of a batch"
    lines = world.gather("share", f"{share}, on {device}")
    shares = [f"rank {rank}: {line}" for rank, line in enumerate(lines)]
    for line in shares:
        reporter.say(line)
    return Choice(world.size, "; ".join(shares))


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - begun
