"""How many epochs and images to evaluate fit into a time budget, timed just before training."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import islice

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.deadline import Deadline
from onsight.evaluation.predictions import evaluate_batches, evaluation_batch_size
from onsight.models.classifier import VIEWS, Classifier
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.step.calibrate import DETECTOR_IMAGES
from onsight.step.timing import Timing, time_batch_sizes
from onsight.tune.compute import eager_options
from onsight.tune.training_data import TrainingData
from onsight.tune.trial import Trial
from onsight.tune.work import HEAD_FIT_SECONDS
from onsight_explain.devices import is_out_of_memory, release_cached_memory

SLOWER = 1.1  # evaluation may take this much longer than in its trial, on a shared machine

_MIN_TIMING_SECONDS = 0.4  # of steps and of evaluation: two images alone say nothing about batches
_MIN_VALIDATED = 8
_TIMED_IMAGES = 32  # on a CPU; elsewhere, a whole batch of an evaluation
_VALIDATION_FRACTION = 0.1  # of the time for training, for one validation
_TRIAL_FRACTION = 0.1  # of a budget, for finding out how to compute a step
_FEW_EPOCHS = 3  # with fewer, a network is far from what more time would make of it
_EVALUATION_PURPOSES = ("evaluation", "detector", "heads")


@dataclass(frozen=True)
class Estimates:
    """Seconds of a training step and of evaluating an image, as timed before training."""

    step_seconds: float = 0.0
    image_seconds: float = 0.0


@dataclass(frozen=True)
class RunTiming:
    """How long a run's own network takes."""

    build_seconds: float  # to make the network and its step
    evaluate: Timing  # of an evaluation, by batch size
    train: Timing  # of a step, by batch size

    def best(self, other: "RunTiming") -> "RunTiming":
        """Return the shorter of both times of everything."""
        seconds = min(self.build_seconds, other.build_seconds)
        return RunTiming(seconds, self.evaluate.best(other.evaluate), self.train.best(other.train))


def trial_seconds(deadline: Deadline) -> float:
    """Return how many seconds of a budget may go into finding out how to compute a step."""
    return _TRIAL_FRACTION * deadline.seconds


def time_run(config: Config, data: TrainingData, world: World, seconds: float) -> RunTiming:
    """Time the run's own step and evaluation, without a plan; every rank gets the first's figures.

    Args:
        world: The ranks. Each times its share of a batch while the others do.
        seconds: For each of the two.
    """
    begun = time.perf_counter()
    plain = eager_options(config, data.device, torch.get_num_threads())
    trial = Trial(plain.apply(config), data)
    built = time.perf_counter() - begun
    share = math.ceil(min(config.batch_size, len(trial.ids)) / world.size)
    steps = cache(trial.timer)  # an epoch's batches take long to list
    step_seconds = max(_MIN_TIMING_SECONDS, seconds - built)
    train = _time_work(lambda size: steps(size)(1), share, step_seconds, data.device)
    at_once = evaluation_batch_size(data.device, data.dataset.format.model_size)
    at_once = min(at_once, len(trial.ids))
    evaluate = _time_work(_make_evaluation(trial), at_once, seconds, data.device)
    mine = [built, evaluate.scaled(1 / world.size).seconds, train.scaled(1.0, world.size).seconds]
    build_seconds, *timings = json.loads(world.broadcast("timing", lambda: json.dumps(mine)))
    evaluate, train = (
        Timing({int(size): seconds for size, seconds in timing.items()}) for timing in timings
    )
    return RunTiming(build_seconds, evaluate, train)


def _time_work(
    measure: Callable[[int], float], batch_size: int, max_seconds: float, device: torch.device
) -> Timing:
    """Time some work on batches of up to a size."""
    if device.type == "cpu":
        return time_batch_sizes(measure, batch_size, max_seconds)
    # A small batch takes an accelerator about as long as a large one, so it tells little of it.
    while True:
        try:
            return time_batch_sizes(measure, batch_size, max_seconds, smallest=batch_size)
        except RuntimeError as error:
            if not is_out_of_memory(error) or batch_size <= 2:  # batch norm refuses one image
                raise
        release_cached_memory(device)  # outside `except`, where the error holds memory
        batch_size //= 2


def time_inference(classifier: Classifier, data: TrainingData) -> float:
    """Return the seconds to classify an image, measured on a few training images."""
    size = evaluation_batch_size(data.device, data.dataset.format.model_size)
    images = _TIMED_IMAGES if data.device.type == "cpu" else size
    ids = data.dataset.ids(TRAIN)[:images]
    size = min(size, len(ids))
    batches = list(Loader(data.images, ids, max(1, size), data.device).in_order())
    classifier(batches[0].images).cpu()  # the first is slow
    begun = time.perf_counter()
    for batch in batches:
        classifier(batch.images).cpu()
    return (time.perf_counter() - begun) / max(1, len(ids))


def count_evaluated(config: Config, validation: int, test: int) -> int:
    """Count the images that pass through the network after training, apart from its validation."""
    views = 1 + len(VIEWS.get(config.tta, ()))
    return views * (test or validation)


def reserve_evaluation(
    deadline: Deadline, config: Config, dataset: Dataset, image_seconds: float
) -> int:
    """Set aside the time to evaluate the model after training.

    Returns how many validation images to evaluate at a time: as many as take a tenth of the time
    for training, and none if those are too few to tell anything. Twice the same time at most is set
    aside for the out-of-distribution detector.
    """
    validation, test = (len(dataset.ids(part)) for part in (VALIDATION, TEST))
    tested = count_evaluated(config, validation, test)
    release_evaluation(deadline)
    deadline.reserve("evaluation", tested * image_seconds)
    images = 0 if config.freeze else validation  # a fitted head comes with its validation
    most_seconds = _VALIDATION_FRACTION * max(0.0, deadline.remaining())
    if images * image_seconds > most_seconds:
        images = int(most_seconds / image_seconds)
        images = images if images >= _MIN_VALIDATED else 0
    deadline.reserve("detector", 2 * min(DETECTOR_IMAGES, images) * image_seconds)
    return images


def reserve_heads(deadline: Deadline, trainings: int) -> None:
    """Set aside the time to fit the heads of some trainings, once their features are there."""
    deadline.reserve("heads", trainings * HEAD_FIT_SECONDS)


def release_evaluation(deadline: Deadline) -> None:
    """Give back the time that was set aside to fit heads, and to evaluate the model."""
    for purpose in _EVALUATION_PURPOSES:
        deadline.release(purpose)


def fit_epochs(
    config: Config,
    dataset: Dataset,
    estimates: Estimates,
    deadline: Deadline,
    world: World,
    reporter: Reporter,
) -> Choice[int]:
    """Report and return about how many epochs fit into the time left; the same on every rank."""
    spent_seconds = world.agree(deadline.elapsed())
    images = reserve_evaluation(deadline, config, dataset, estimates.image_seconds)
    training, validation = (len(dataset.ids(split)) for split in (TRAIN, VALIDATION))
    batch = min(config.batch_size, training)
    epoch_seconds = training / batch * estimates.step_seconds + images * estimates.image_seconds
    left_seconds = deadline.seconds - deadline.reserved() - spent_seconds
    left_seconds = max(0.0, left_seconds - images * estimates.image_seconds)
    folds = dataset.folds.value
    if folds > 1:
        epoch_seconds *= folds + 1
    each = f" for each of {folds} folds and the final model" if folds > 1 else ""
    epochs, more = left_seconds / epoch_seconds, deadline.seconds / epoch_seconds
    reporter.detail(
        f"budget: {deadline.seconds:.0f} s, of which {spent_seconds:.0f} are spent and "
        f"{left_seconds:.0f} are left for training: about {epochs:.1f} epochs{each} at "
        f"{batch / estimates.step_seconds:,.0f} images/s; with twice the time about "
        f"{epochs + more:.1f}"
    )
    if epochs < _FEW_EPOCHS:
        whole = deadline.whole
        reporter.warn(
            f"budget: {whole.elapsed():.0f} of {whole.seconds:.0f} s are spent, which leaves time "
            f"for only about {epochs:.1f} epochs; with twice the budget, there would be about "
            f"{epochs + more:.0f}"
        )
    if validation and not images:
        reporter.say("budget: no time for validation: the last weights will be the model")
    elif images < validation:
        reporter.say(
            f"budget: validation on {images:,} of its {validation:,} images, as many "
            "as there is time for"
        )
    return Choice(max(1, round(epochs)), "about as many as the budget has time for", epochs)


def _make_evaluation(trial: Trial) -> Callable[[int], float]:
    net, scaling, device = trial.step.model, trial.data.normalization, trial.data.device
    classifier = Classifier(net, scaling, trial.config.precision, device)

    def evaluate(images: int) -> float:
        loader = Loader(trial.data.images, trial.ids[:images], images, device)
        batches = islice(loader.in_order(), 1)
        begun = time.perf_counter()
        evaluate_batches(classifier, batches)  # ends with the results on the CPU
        return time.perf_counter() - begun

    return evaluate
