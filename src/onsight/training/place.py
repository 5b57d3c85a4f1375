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
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.errors import BudgetTooSmall
from onsight.models.classifier import Classifier
from onsight.step.fine_tuning import choose_average
from onsight.step.losses import choose_class_weights
from onsight.text import duration
from onsight.training.fit_head import uses_fitted_head
from onsight.training.job import Job
from onsight.training.open_data import OpenedData
from onsight.training.placement_check import naming_misplaced
from onsight.tune.batch_size import usual_batch
from onsight.tune.compute import default_options, why_not_graphed
from onsight.tune.epochs import choose_epochs
from onsight.tune.fit_epochs import (
    SLOWER,
    Estimates,
    fit_epochs,
    reserve_evaluation,
    time_inference,
    time_run,
    trial_seconds,
)
from onsight.tune.folds import expected_forward_seconds, expected_seconds
from onsight.tune.parts import choose_parts
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
from onsight.tune.work import (
    LEAST_HEAD_FRACTION,
    MAX_HEAD_SHARE,
    nominal_seconds,
    training_seconds,
)
from onsight_explain.devices import free_memory_bytes, has_graphs

_TIMING_FRACTION = 0.3  # of the time for trials: for steps, and as much again for evaluation
_LEAST_TRAINING_FRACTION = 0.1  # of a budget that is extended
_SURE_SECONDS = 2.0  # for each, before a budget is refused
_ACTIVITIES = {"decode": "decoding images"}  # names of phases, in sentences
_OF_STEPS = ("learning_rate", "batch_size")
_NOTHING_TRAINED = "not measured: the backbone is frozen, and only computes features"
_RANKS_NOT_MEASURED = "not measured: all ranks would have to measure the same"


@dataclass(frozen=True)
class PlacedData:
    """Images where batches are gathered from."""

    data: TrainingData  # images, their normalization, the device and the user's own network, if any
    config: Config  # settings, with all that is decided by now
    choices: Mapping[str, Choice[Any]]  # reasons so far, by config field
    opened: OpenedData  # what was decided before


@dataclass(frozen=True)
class PlannedRun:
    """What training starts from; nothing in the config is left open."""

    config: Config
    plan: Plan  # reasons of all choices
    data: TrainingData  # what to train on
    data_key: str  # digest of the images, their labels and their split
    found: str  # what DATA was recognised as
    # What a step and an evaluation take, if there is a budget.
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
    if job.world.size == 1:
        usual = usual_batch(config, len(dataset.ids(TRAIN))).value
        sized = config.model_copy(update={"batch_size": usual})
        moved, data = move_if_room(sized, data, images, job.threads.value)
        if moved != images:
            reporter.choice("images", moved)
        images = moved
    return PlacedData(data, config, {**choices, "images": images}, opened)


def plan_run(placed: PlacedData, job: Job) -> PlannedRun:
    """Choose the batch size, how each step is computed and the number of epochs.

    Sets the number of threads of this process. Raises BudgetTooSmall if no time is left to train.
    """
    opened, data, config = placed.opened, placed.data, placed.config
    torch.set_num_threads(job.threads.value)  # not those of the member before
    training = len(data.dataset.ids(TRAIN))
    batch_size = usual_batch(config, training)
    config = config.model_copy(update={"batch_size": batch_size.value})
    epochs = Choice(1, "unknown")
    choices = {**placed.choices, "device": job.device, "batch_size": batch_size}
    estimates, parts = Estimates(), None
    with job.timed("plan"), naming_misplaced(lambda: data.new_network(config)):
        if job.deadline.is_set:
            _require_seconds(0.0, config, job)
        net = data.new_network(config)
        is_trained = not (config.freeze and uses_fitted_head(config, net))
        if is_trained:
            epochs = _choose_epochs(config, net, data, opened, job)
            config = config.model_copy(update={"epochs": epochs.value})
            parts = _divide_batches(config, net, data, job)
            config = config.model_copy(update={"accumulate": parts.value} if parts else {})
        elif fitted := _limit_head_images(config, net, data, job):
            choices["head_images"] = fitted
            config = config.model_copy(update={"head_images": fitted.value})
        if job.deadline.is_set and is_trained:
            compute, epochs, estimates = _plan_in_time(config, data, job)
        elif is_trained:
            compute = _choose_compute(config, data, job)
        else:
            compute, estimates = _plan_head(config, data, job)
    if is_trained:
        job.reporter.choice("epochs", epochs)
        choices["epochs"] = epochs
        if not job.is_planned:
            config = config.model_copy(update={"epochs": epochs.value})
    else:  # without training steps, these have no effect
        choices = {name: choices[name] for name in choices if name not in _OF_STEPS}
    if parts and parts.value == compute.accumulate.value:
        compute = replace(compute, accumulate=parts)
    job.reporter.choice("accumulate", compute.accumulate)
    config = compute.apply(config)
    torch.set_num_threads(config.threads)
    choices |= compute.choices()
    if opened.layout.fine_tuning and not config.freeze:
        average = choose_average(config, _expect_steps(config, data.dataset, estimates, job))
        job.reporter.choice("ema", average)
        choices["ema"] = average
        config = config.model_copy(update={"ema": average.value})
    plan = Plan(choices, compute.measured)
    found = opened.layout.source.description
    return PlannedRun(config, plan, data, opened.key, found, estimates)


def _choose_epochs(
    config: Config, net: nn.Module, data: TrainingData, opened: OpenedData, job: Job
) -> Choice[int]:
    """Choose the number of epochs by what an epoch costs; a budget may end training before."""
    dataset, (candidate,) = data.dataset, opened.layout.candidates
    training, folds = len(dataset.ids(TRAIN)), dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    if candidate.epochs or job.deadline.is_set:
        return choose_epochs(config, candidate.epochs or math.inf)
    steps = math.ceil(training / config.batch_size)
    epoch_seconds = expected_seconds(net, dataset.input_shape, training, steps, data.device)
    seconds = training_seconds(nominal_seconds(config, len(dataset.pack)))
    return choose_epochs(config, seconds / trainings / epoch_seconds)


def _limit_head_images(
    config: Config, net: nn.Module, data: TrainingData, job: Job
) -> Choice[int] | None:
    """Choose how many images a head is fitted on; None if all of them, or if that is chosen."""
    if config.head_images or job.deadline.is_set:
        return None
    dataset = data.dataset
    images = len(dataset.ids(TRAIN))
    held_out = sum(len(dataset.ids(part)) for part in (VALIDATION, TEST))
    if dataset.folds.value > 1:  # each of which leaves out others
        images, held_out = images + held_out, 0
    seconds = MAX_HEAD_SHARE * training_seconds(nominal_seconds(config, len(dataset.pack)))
    image_seconds = expected_forward_seconds(net, dataset.input_shape, data.device)
    views = 2 if config.flip else 1
    affordable = int(seconds / image_seconds) - held_out
    if affordable >= views * images:
        return None
    # Mirror images only come into play if every image has one.
    fitted = min(images, max(affordable, round(LEAST_HEAD_FRACTION * images)))
    reason = f"about as many of {images:,} as --effort {config.effort} has time for"
    choice = Choice(fitted, reason)
    job.reporter.choice("head_images", choice)
    return choice


def _divide_batches(
    config: Config, net: nn.Module, data: TrainingData, job: Job
) -> Choice[int] | None:
    """Choose into how many parts batches are divided; more for lack of memory are recorded."""
    free_bytes = job.world.agree(free_memory_bytes(torch.device("cpu")))
    parts, is_forced = choose_parts(net, config, data, job.world.size, free_bytes)
    if parts and is_forced:
        job.reporter.warn(f"memory: each batch is computed in {parts.value} parts: {parts.reason}")
        job.decisions.record("accumulate", parts.value)
    return parts


def _expect_steps(config: Config, dataset: Dataset, estimates: Estimates, job: Job) -> int:
    """Return the steps of one training; with a budget, about as many as there is time for."""
    if not job.deadline.is_set:
        return config.epoch_count * math.ceil(len(dataset.ids(TRAIN)) / config.batch_size)
    folds = dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    left_seconds = job.world.agree(job.deadline.remaining())
    return int(left_seconds / max(1e-9, estimates.step_seconds) / trainings)


def _plan_head(config: Config, data: TrainingData, job: Job) -> tuple[ComputePlan, Estimates]:
    """Choose how features are computed; with a budget, set aside the time to evaluate the model."""
    compute = unmeasured_plan(
        config, default_options(config, data.device, job.threads.value), _NOTHING_TRAINED
    )
    if job.world.size == 1:
        compute = choose_inference(config, data, compute)
    compute = _complete(compute, config, data, job)
    if not job.deadline.is_set:
        return compute, Estimates()
    config = compute.apply(config)
    torch.set_num_threads(config.threads)
    net = data.new_network(config)
    classifier = Classifier(net, data.normalization, config.precision, data.device)
    image_seconds = job.world.agree(SLOWER * time_inference(classifier, data))
    reserve_evaluation(job.deadline, config, data.dataset, image_seconds)
    images = LEAST_HEAD_FRACTION * len(data.dataset.ids(TRAIN)) if job.is_optional else 0.0
    if job.world.agree(job.deadline.remaining()) <= images * image_seconds:  # only for a moment?
        again = job.world.agree(SLOWER * time_inference(classifier, data))
        image_seconds = min(image_seconds, again)
        reserve_evaluation(job.deadline, config, data.dataset, image_seconds)
    _require_seconds(images * image_seconds, config, job)
    return compute, Estimates(0.0, image_seconds)


def _plan_in_time(
    config: Config, data: TrainingData, job: Job
) -> tuple[ComputePlan, Choice[int], Estimates]:
    """Time the step and the evaluation, and choose what fits into the time left.

    Returns:
        How a step is computed, about how many epochs fit, and what was measured.
    """
    deadline = job.deadline
    seconds = _TIMING_FRACTION * trial_seconds(deadline)
    timing = time_run(config, data, job.world, seconds)
    image_seconds = SLOWER * timing.evaluate.per_image
    images = reserve_evaluation(deadline, config, data.dataset, image_seconds)
    if not job.has_weights and job.world.agree(deadline.remaining()) <= 0:  # only for a moment?
        seconds = max(_SURE_SECONDS, seconds)
        timing = timing.best(time_run(config, data, job.world, seconds))
        image_seconds = SLOWER * timing.evaluate.per_image
        images = reserve_evaluation(deadline, config, data.dataset, image_seconds)
    batch = min(config.batch_size, len(data.dataset.ids(TRAIN)))
    _require_seconds(timing.train.at(batch), config, job)
    left_seconds = deadline.remaining() - images * image_seconds
    allowed = MeasuringBudget(trial_seconds(deadline), timing.build_seconds, timing.train)
    compute = _choose_compute(config, data, job, left_seconds, allowed)
    rate = compute.images_per_second
    step_seconds = config.batch_size / rate if rate else timing.train.at(batch)
    estimates = Estimates(step_seconds, image_seconds)
    epochs = fit_epochs(config, data.dataset, estimates, deadline, job.world, job.reporter)
    return compute, epochs, estimates


def _require_seconds(seconds: float, config: Config, job: Job) -> None:
    """Make sure that there is time to train, on all ranks alike: if need be, by extending a bit.

    Args:
        seconds: The least that training takes.

    Raises:
        BudgetTooSmall: That is not enough, or the run has a model without this training.
    """
    deadline = job.deadline
    left_seconds = job.world.agree(deadline.remaining())
    if job.has_weights or left_seconds > seconds:
        return
    least_seconds = seconds + _LEAST_TRAINING_FRACTION * deadline.whole.budget_seconds
    spent_seconds = deadline.whole.elapsed()
    if not job.is_optional and deadline.extend(least_seconds - left_seconds):
        job.reporter.warn(
            f"budget: {duration(spent_seconds)} are spent before training, so the run will take "
            f"about {duration(deadline.whole.seconds)}"
        )
        return
    needed_seconds = seconds + deadline.reserved()
    if deadline is not deadline.whole:
        needed_seconds += deadline.whole.reserved()
    phases = {name: spent for name, spent in job.phases.items() if name != "start"}
    phases["starting and planning"] = spent_seconds - sum(phases.values())
    longest = max(phases, key=phases.__getitem__)
    enough_seconds = math.ceil(2 * (spent_seconds + needed_seconds))
    raise BudgetTooSmall(
        f"--budget {config.budget} is too short: {duration(spent_seconds)} are spent, "
        f"{duration(phases[longest])} of them on {_ACTIVITIES.get(longest, longest)}, and "
        f"training, evaluation and saving need at least {duration(needed_seconds)}; try "
        f"--budget {enough_seconds}s"
    )


def _choose_compute(
    config: Config,
    data: TrainingData,
    job: Job,
    left_seconds: float | None = None,
    allowed: MeasuringBudget = UNLIMITED,
) -> ComputePlan:
    """Choose how each step is computed, and report the reasons."""
    if job.world.size > 1:
        plain = default_options(config, data.device, job.threads.value)
        compute = unmeasured_plan(config, plain, _RANKS_NOT_MEASURED)
    else:
        compute = choose_compute(config, data, job.reporter, left_seconds, allowed)
    return _complete(compute, config, data, job)


def _complete(compute: ComputePlan, config: Config, data: TrainingData, job: Job) -> ComputePlan:
    """Add what needs no measuring to the reasons, and report them."""
    compute = with_tf32_named(compute, data.device)
    reason = why_not_graphed(config, data.device)
    if reason:
        compute = replace(compute, cuda_graph=replace(compute.cuda_graph, reason=reason))
    for name, choice in compute.choices().items():
        if name != "accumulate" and (name != "cuda_graph" or has_graphs(data.device)):
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
        job.reporter.detail(line)
    return Choice(world.size, "; ".join(shares))
