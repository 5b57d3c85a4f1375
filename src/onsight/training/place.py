"""Puts the images where batches are gathered from, and chooses how each step is computed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.loader import Loader
from onsight.step.fine_tuning import choose_average, choose_freezing
from onsight.step.losses import choose_class_weights
from onsight.training.fit_head import uses_fitted_head
from onsight.training.job import Job
from onsight.training.open_data import OpenedData
from onsight.training.placement_check import naming_misplaced
from onsight.tune.batch_size import fit_batch, usual_batch
from onsight.tune.budget import Budget
from onsight.tune.compute import default_options, why_not_graphed
from onsight.tune.fit_epochs import (
    SLOWER,
    Estimates,
    fit_epochs,
    reserve_evaluation,
    time_run,
)
from onsight.tune.pace import Pace
from onsight.tune.plan import ComputePlan, Plan, with_tf32_named
from onsight.tune.planning import (
    UNLIMITED,
    MeasuringBudget,
    choose_compute,
    choose_inference,
    unmeasured_plan,
)
from onsight.tune.room import move_if_room
from onsight.tune.training_data import TrainingData, choose_residency, place_data
from onsight_explain.devices import has_graphs

_NOTHING_TRAINED = "not measured: the backbone is frozen, and only computes features"
_RANKS_NOT_MEASURED = "not measured: all ranks would have to measure the same"


@dataclass(frozen=True)
class PlacedData:
    """Images where batches are gathered from.

    Args:
        data: The images, their normalization, the device and the user's own network, if any.
        config: The settings, with all that is decided by now.
        choices: The reasons so far, by config field.
        opened: What was decided before.
    """

    data: TrainingData
    config: Config
    choices: Mapping[str, Choice[Any]]
    opened: OpenedData


@dataclass(frozen=True)
class PlannedRun:
    """What training starts from; nothing in the config is left open.

    Args:
        config: The settings.
        plan: The reasons of all choices.
        data: What to train on.
        data_key: A digest of the images, their labels and their split.
        found: What DATA was recognised as.
        estimates: What a step and an evaluation take, if there is a budget.
    """

    config: Config
    plan: Plan
    data: TrainingData
    data_key: str
    found: str
    estimates: Estimates = field(default_factory=Estimates)

    @property
    def dataset(self) -> Dataset:
        """The images with their split."""
        return self.data.dataset


def place(opened: OpenedData, module: nn.Module | None, job: Job) -> PlacedData:
    """Put the images on the device or in memory, or leave them in the pack's file."""
    dataset, device, reporter = opened.dataset, job.device.value, job.reporter
    config, layout = opened.config, opened.layout
    images = choose_residency(dataset.images, device, config.residency, job.world.size)
    reporter.choice("images", images)
    ranks = _describe_ranks(dataset, config, job)
    weights = choose_class_weights(config.class_weights, torch.from_numpy(dataset.counts(TRAIN)))
    if weights.value != "none":
        reporter.choice("class_weights", weights)
    config = config.model_copy(update={"class_weights": weights.value})
    data = place_data(dataset, config, device, images.value, module)
    choices = {**opened.choices, "ranks": ranks, "class_weights": weights, **layout.fine_tuning}
    is_open = layout.fine_tuning and "freeze" not in config.model_fields_set
    if job.budget and is_open and layout.pace and job.world.size == 1:
        image_seconds, images_count = layout.pace.train.per_image, len(dataset.ids(TRAIN))
        freezing = choose_freezing(image_seconds, job.budget.left_seconds, images_count)
        reporter.choice("freeze", freezing)
        choices["freeze"] = freezing
        config = config.model_copy(update={"freeze": freezing.value})
    if job.world.size == 1:
        usual = usual_batch(config, len(dataset.ids(TRAIN))).value
        sized = config.model_copy(update={"batch_size": usual})
        moved, data = move_if_room(sized, data, images, job.threads.value)
        if moved != images:
            reporter.choice("images", moved)
        images = moved
    return PlacedData(data, config, {**choices, "images": images}, opened)


def plan_run(placed: PlacedData, job: Job) -> PlannedRun:
    """Choose the batch size, how each step is computed and, with a budget, how many epochs fit.

    Sets the number of threads of this process.
    """
    opened, data, config = placed.opened, placed.data, placed.config
    estimates = Estimates()
    with job.timed("plan"), naming_misplaced(lambda: data.new_network(config)):
        if job.budget:
            fitted = _fit_training(job.budget, config, data, opened.layout.pace, job)
            batch_size, compute, config, estimates = fitted
        else:
            batch_size = usual_batch(config, len(data.dataset.ids(TRAIN)))
            config = config.model_copy(update={"batch_size": batch_size.value})
            compute = _choose_compute(config, data, job)
            config = _apply(compute, config)
    choices = {**placed.choices, "device": job.device, "batch_size": batch_size}
    choices |= compute.choices()
    if opened.layout.fine_tuning and not config.freeze:
        average = choose_average(config, _expected_steps(config, data.dataset, estimates, job))
        job.reporter.choice("ema", average)
        choices["ema"] = average
        config = config.model_copy(update={"ema": average.value})
    plan = Plan(choices, compute.measured)
    found = opened.layout.source.description
    return PlannedRun(config, plan, data, opened.key, found, estimates)


def _apply(compute: ComputePlan, config: Config) -> Config:
    """Return the config with the plan, and let this process use its number of threads."""
    config = compute.apply(config)
    torch.set_num_threads(config.threads)
    return config


def _expected_steps(config: Config, dataset: Dataset, estimates: Estimates, job: Job) -> int:
    """Return the steps of one training; with a budget, about as many as there is time for."""
    if job.budget is None:
        return config.epochs * math.ceil(len(dataset.ids(TRAIN)) / config.batch_size)
    folds = dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    return int(job.budget.left_seconds / max(1e-9, estimates.step_seconds) / trainings)


def _fit_training(
    budget: Budget, config: Config, data: TrainingData, pace: Pace | None, job: Job
) -> tuple[Choice[int], ComputePlan, Config, Estimates]:
    """Return batch size, plan, config and estimates with which training fits into a budget."""
    training = len(data.dataset.ids(TRAIN))
    if config.freeze and pace and job.world.size == 1:
        with budget.trying():
            compute = _choose_compute(config, data, job)
        batch_size = usual_batch(config, training)
        config = _apply(compute, config).model_copy(update={"batch_size": batch_size.value})
        estimates = Estimates(0.0, SLOWER * pace.evaluate.per_image)
        reserve_evaluation(budget.deadline, config, data.dataset, estimates.image_seconds)
        return batch_size, compute, config, estimates
    with budget.trying():
        timing = time_run(budget, config, data, job.world, pace)
    budget.read_clock()
    image_seconds = SLOWER * timing.judge.per_image
    images = reserve_evaluation(budget.deadline, config, data.dataset, image_seconds)
    left_seconds = budget.left_seconds - images * image_seconds
    batch_size = fit_batch(config, timing.train, left_seconds, training)
    job.reporter.choice("batch_size", batch_size)
    config = config.model_copy(update={"batch_size": batch_size.value})
    allowed = MeasuringBudget(budget.trial_seconds, timing.build_seconds, timing.train)
    with budget.trying():
        compute = _choose_compute(config, data, job, left_seconds, allowed)
    config = _apply(compute, config)
    rate = compute.images_per_second
    batch = min(config.batch_size, training)
    step_seconds = config.batch_size / rate if rate else timing.train.at(batch)
    estimates = Estimates(step_seconds, image_seconds)
    fitted = fit_epochs(budget, config, data.dataset, estimates, job.reporter)
    return batch_size, compute, config if job.is_planned else fitted, estimates


def _choose_compute(
    config: Config,
    data: TrainingData,
    job: Job,
    left_seconds: float | None = None,
    allowed: MeasuringBudget = UNLIMITED,
) -> ComputePlan:
    """Choose how each step is computed, and report the reasons."""
    plain = default_options(config, data.device, job.threads.value)
    if job.world.size > 1:
        compute = unmeasured_plan(config, plain, _RANKS_NOT_MEASURED)
    elif config.freeze and uses_fitted_head(config, data.new_network(config)):
        compute = choose_inference(config, data, unmeasured_plan(config, plain, _NOTHING_TRAINED))
    else:
        compute = choose_compute(config, data, job.reporter, left_seconds, allowed)
    compute = with_tf32_named(compute, data.device)
    reason = why_not_graphed(config, data.device)
    if reason:
        compute = replace(compute, cuda_graph=replace(compute.cuda_graph, reason=reason))
    for name, choice in compute.choices().items():
        if name != "cuda_graph" or has_graphs(data.device):
            job.reporter.choice(name, choice)
    return compute


def _describe_ranks(dataset: Dataset, config: Config, job: Job) -> Choice[int]:
    """Return the number of ranks; report the device and the share of a batch of each."""
    world = job.world
    if world.size == 1:
        return Choice(1, "one process")
    ids, cpu = dataset.ids(TRAIN), torch.device("cpu")
    loader = Loader(dataset.images, ids, config.batch_size, cpu, world.rank, world.size)
    batch = next(loader.epoch(config.seed, 0))
    share = f"{len(batch.labels)} of the {len(batch.global_labels)} images of a batch"
    lines = world.gather("share", f"{share}, on {job.device.value}")
    shares = [f"rank {rank}: {line}" for rank, line in enumerate(lines)]
    for line in shares:
        job.reporter.say(line)
    return Choice(world.size, "; ".join(shares))
