"""Trains one network on the split of a prepared run, from its start or its last checkpoint."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from onsight.choice import Choice
from onsight.config import Config, Switch
from onsight.data.dataset import Dataset
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.evaluation.predictions import evaluation_batch_size
from onsight.evaluation.results import EpochRow
from onsight.features.choose_head import LearningCurvePoint
from onsight.features.feature_pass import SharedFeatures
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.ranks.signals import stop_on_signals
from onsight.ranks.world import World
from onsight.report.console import Reporter
from onsight.step.build import make_net, make_update
from onsight.step.calibrate import (
    calibrate,
    fit_out_of_distribution_detector,
    recalibrate_norms,
    set_out_of_distribution,
    set_temperature,
)
from onsight.step.fine_tuning import HEAD_SHARE
from onsight.text import joined
from onsight.training.announce_weights import announcing_weights
from onsight.training.checkpoint import load_weights
from onsight.training.fit_head import FittedHead, fit_head, fits_head, put_head
from onsight.training.loggers.loggers import Loggers
from onsight.training.model_file import make_model_file
from onsight.training.placement_check import naming_misplaced
from onsight.training.prepare import PreparedRun
from onsight.training.progress import Progress, Record
from onsight.training.run_folder import RunFolder
from onsight.training.saving import CheckpointWriter, Mirror
from onsight.training.trainer import Trainer
from onsight.tune.budget import Budget


@dataclass(frozen=True)
class RunContext:
    """Where a training reports and saves, and with which processes it trains.

    provenance: what its model files say about their origin; keep_switch: called with each change
    of compute options and its reason; loggers: told of every epoch; features: those that its
    trainings share.
    """

    folder: RunFolder
    reporter: Reporter
    world: World
    provenance: dict[str, Any]
    keep_switch: Callable[[Switch, str], None]
    loggers: Loggers
    features: SharedFeatures = field(default_factory=SharedFeatures)


@dataclass(frozen=True)
class Trained:
    """A network with the weights that were chosen, how its training went, and seconds by phase.

    temperature: the classifier's, with its reason; unlike: what tells it unlike images, with the
    reason; fitted: how many images a frozen network's
    head was fitted on in the end, if validation images are among them; fewer: what that head
    achieved with fewer images, if known.
    """

    classifier: Classifier
    progress: Progress
    temperature: Choice[float]
    out_of_distribution: Choice[OutOfDistributionDetector | None]
    seconds: dict[str, float]
    fitted: int = 0
    fewer: tuple[LearningCurvePoint, ...] = ()


def train_once(
    prepared: PreparedRun, context: RunContext, budget: Budget | None, resume: bool
) -> Trained:
    """Train a new network, or the user's own, and give it the weights of its best epoch.

    Every rank returns the same. Raises Interrupted after a checkpoint, NonFiniteLoss.
    """
    config, data = prepared.config, prepared.data
    tell = announcing_weights(config, data.dataset.input_shape[1:], context.reporter)
    net = make_net(config, data.dataset, data.device, data.module, tell)
    head = None
    if fits_head(config, net) and not (resume and context.folder.last_checkpoint.exists()):
        classifier = Classifier(net, data.normalization, config.precision, data.device)
        left = _left_seconds(config, budget)
        context.world.does("fitting the head")
        with context.world.watchdog_paused():  # every rank computes the same, in its own time
            head = fit_head(config, data, classifier, context.reporter, left, context.features)
        if config.freeze:
            return _without_training(head, classifier, context)
    with stop_on_signals(context.world.stop):
        with naming_misplaced(lambda: prepared.data.new_network(config)):
            trainer = _make_trainer(prepared, context, budget, net)
        if resume:
            trainer.resume()
        progress = trainer.run(head.row if head else None)
    classifier = trainer.classifier
    context.world.broadcast("best weights", str)  # the first rank has written them by now
    load_weights(context.folder.best_weights, classifier.net)
    seconds = {"training": progress.training_seconds, "validation": progress.validation_seconds}
    if config.recalibrate_norm and not config.freeze:  # a frozen backbone keeps its own
        begun = time.perf_counter()
        with context.world.watchdog_paused():  # every rank computes the same, in its own time
            recalibrate_norms(classifier, data.dataset.images, data.dataset.ids(TRAIN))
        seconds["recalibration"] = time.perf_counter() - begun
    return _calibrated(classifier, progress, seconds, data.dataset, context, budget)


def _left_seconds(config: Config, budget: Budget | None) -> Callable[[], float]:
    """The time left for the head: all of a budget, or a part if the network is trained after it."""
    if budget is None:
        return lambda: math.inf
    share = 1.0 if config.freeze else HEAD_SHARE

    def left() -> float:
        budget.look()
        return share * budget.left_seconds

    return left


def _without_training(head: FittedHead, classifier: Classifier, context: RunContext) -> Trained:
    """A frozen backbone with its fitted head is already the trained network."""
    progress = Progress(images=head.images, training_seconds=head.seconds)
    if context.world.is_main:
        Record(context.folder.path, progress.rows, 0, context.loggers).add(head.row)
    seconds = {"training": head.seconds}
    # The temperature is that of the head which has not learned from validation images.
    temperature = set_temperature(classifier, head.logits, head.labels, context.world)
    out_of_distribution = set_out_of_distribution(
        classifier, head.seen, head.features, context.world
    )
    if head.kept:
        put_head(classifier.net, head.kept)
    return Trained(
        classifier,
        progress,
        temperature,
        out_of_distribution,
        seconds,
        head.kept_images,
        head.fewer,
    )


def _calibrated(
    classifier: Classifier,
    progress: Progress,
    seconds: dict[str, float],
    dataset: Dataset,
    context: RunContext,
    budget: Budget | None,
) -> Trained:
    begun = time.perf_counter()
    ids = dataset.ids(VALIDATION)
    if budget:
        ids = ids[: budget.images_to_calibrate()]
    temperature = calibrate(classifier, dataset.images, ids, context.world)
    most = budget.images_to_compare() if budget else len(dataset.pack)
    seen, held_out = (dataset.ids(split)[:most] for split in (TRAIN, VALIDATION))
    out_of_distribution = fit_out_of_distribution_detector(
        classifier, dataset.images, seen, held_out, context.world
    )
    seconds["calibration"] = time.perf_counter() - begun
    return Trained(classifier, progress, temperature, out_of_distribution, seconds)


def _make_trainer(
    prepared: PreparedRun, context: RunContext, budget: Budget | None, net: nn.Module
) -> Trainer:
    config, data, world = prepared.config, prepared.data, context.world
    dataset, device = data.dataset, data.device
    update = make_update(config, net, dataset, data.normalization, device, world)
    evaluated = update.average.model if update.average else net
    classifier = Classifier(evaluated, data.normalization, config.precision, device)

    def keep_epoch(epoch: int, row: EpochRow) -> None:
        if config.keep_epochs:
            file = make_model_file(config, dataset, classifier, {"epoch": row}, context.provenance)
            save_model(context.folder.epoch_file(epoch), file)

    def make_loader(split: int, batch_size: int, with_next: bool = False) -> Loader:
        ids, ranks = dataset.ids(split), (world.rank, world.size)
        return Loader(data.images, ids, batch_size, device, *ranks, with_next)

    mirror = None
    if config.checkpoints and world.is_main:
        mirror = Mirror(config.checkpoints, context.folder)
    at_once = evaluation_batch_size(device, dataset.format.model_size)
    watched = {"validation": VALIDATION, **({"test": TEST} if config.test_each_epoch else {})}
    return Trainer(
        config,
        update,
        classifier,
        make_loader(TRAIN, config.batch_size, update.augmentation.mixes),
        {name: make_loader(split, at_once) for name, split in watched.items()},
        name_images=lambda batch: _name_images(batch, dataset),
        keep_epoch=keep_epoch,
        keep_switch=context.keep_switch,
        folder=context.folder,
        loggers=context.loggers,
        data_key=prepared.data_key,
        reporter=context.reporter,
        budget=budget,
        writer=CheckpointWriter(mirror),
    )


def _name_images(batch: Batch, dataset: Dataset) -> str:
    return joined([dataset.pack.index.locators[number] for number in batch.ids.tolist()])
