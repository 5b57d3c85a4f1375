"""Trains one network as planned, from its start or its last checkpoint."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.deadline import Deadline
from onsight.evaluation.predictions import HeldOutLogits, evaluation_batch_size, held_out_logits
from onsight.evaluation.results import EpochRow
from onsight.features.choose_head import LearningCurvePoint
from onsight.features.feature_pass import SharedFeatures
from onsight.models.catalog import expected_input
from onsight.models.classifier import Classifier
from onsight.models.file import save_model
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.models.weights import LoadedWeights
from onsight.ranks.signals import stop_on_signals
from onsight.report.console import Reporter
from onsight.step.build import make_net, make_update
from onsight.step.calibrate import (
    DETECTOR_IMAGES,
    RECALIBRATION_IMAGES,
    calibrate_temperature,
    compute_held_out_logits,
    count_recalibrated_steps,
    fit_detector_on_features,
    fit_detector_on_images,
)
from onsight.text import duration, fixed_percent, joined, percent
from onsight.training.checkpoint import load_weights, save_weights
from onsight.training.decisions import COUNT
from onsight.training.fit_head import FittedHead, fit_head, set_head, uses_fitted_head
from onsight.training.interpolation import FRACTIONS, load_interpolated
from onsight.training.job import RunJob
from onsight.training.listener import Listener
from onsight.training.loggers.loggers import Loggers
from onsight.training.model_file import BestSoFar, make_model_file
from onsight.training.pacers import SEGMENT, DeadlinePacer, EpochPacer, Pacer, RecordedPacer
from onsight.training.place import PlannedRun
from onsight.training.placement_check import checking_placement, naming_misplaced
from onsight.training.progress import Progress, write_metrics
from onsight.training.saving import Checkpoints, CheckpointWriter, Mirror
from onsight.training.trainer import Trainer, TrainerData
from onsight.tune.fit_epochs import reserve_evaluation

# Times as long as a first checkpoint: the end writes best weights, a last checkpoint with the
# optimizer's state and the model file.
_SAVES_AT_THE_END = 5
_EARLY_FRACTION = 0.05  # of the time, which is more than is left by chance
_ROUNDING = 1e-6  # of an image: undoes the rounding of images to seconds and back
_MAX_INTERPOLATION_FRACTION = 0.1  # of the time left, for evaluating interpolated weights


@dataclass(frozen=True)
class Trained:
    """A trained network with the weights that are kept."""

    classifier: Classifier
    progress: Progress  # how far training came
    temperature: Choice[float]  # of the classifier, with its reason
    out_of_distribution: Choice[OutOfDistributionDetector | None]  # its detector, with the reason
    seconds: dict[str, float]  # by phase
    held_out: HeldOutLogits  # its logits of validation images
    # Images a frozen network's head was fitted on, if validation images are among them.
    fitted: int = 0
    # What that head achieved with fewer images, if known.
    fewer: tuple[LearningCurvePoint, ...] = ()
    left_out: int = 0  # training images that there was no time to fit that head on


def accept(rows: HeldOutLogits) -> str:
    """Find no reason to end a training."""
    return ""


@dataclass(frozen=True)
class Shared:
    """What all trainings of a run use: loggers, provenance and computed features."""

    loggers: Loggers  # told of every epoch
    provenance: dict[str, Any]  # what model files contain about their origin
    # Computed by one training, and used by the others.
    features: SharedFeatures = field(default_factory=SharedFeatures)
    # Returns why a training so far adds nothing to the members before it; empty if it does.
    judge: Callable[[HeldOutLogits], str] = accept
    is_final: bool = True  # whether the run's model is trained, rather than that of a fold


def fit(planned: PlannedRun, shared: Shared, job: RunJob) -> Trained:
    """Train a new network, or the user's own, and give it the weights of its best epoch.

    Every rank returns the same. Raises Interrupted after a checkpoint, NonFiniteLoss.
    """
    config, data = planned.config, planned.data
    announce = _announcing_weights(config, data.dataset.input_shape[1:], job.reporter)
    net = make_net(config, data.dataset, data.device, data.module, announce)
    head = None
    resumes = job.resume and job.folder.last_checkpoint.exists()
    if uses_fitted_head(config, net) and not resumes:
        head = _fit_head(planned, net, shared, job)
        if config.freeze:
            return _without_training(planned, net, head, shared, job)
    with stop_on_signals(job.world.stop):
        classifier, progress, held_out = _train_layers(planned, net, head, shared, job)
    job.world.wait_for_first_rank("best weights")
    load_weights(job.folder.best_weights, classifier.net)
    seconds = {"training": progress.training_seconds, "validation": progress.validation_seconds}
    return _calibrate(classifier, progress, held_out, seconds, planned, job)


def _train_layers(
    planned: PlannedRun, net: nn.Module, head: FittedHead | None, shared: Shared, job: RunJob
) -> tuple[Classifier, Progress, HeldOutLogits | int]:
    """Train all layers until the pacer ends it.

    Returns:
        The classifier with its last weights, how far training came, and the validation logits of
        its best weights; or, if those are not known, of how many images they are to be computed.
    """
    config, deadline = planned.config, job.deadline

    def write_epoch(classifier: Classifier, row: EpochRow) -> None:
        facts, provenance = {"epoch": row}, shared.provenance
        file = make_model_file(config, planned.dataset, classifier, facts, provenance)
        save_model(job.folder.epoch_file(row["epoch"]), file)

    best_so_far = None
    if shared.is_final and job.world.is_main:
        path, provenance = job.folder.run_model_file, shared.provenance
        best_so_far = BestSoFar(path, config, planned.dataset, provenance)
    start = job.folder.start_weights  # written if there is a fitted head
    is_mirrored = config.checkpoints and job.world.is_main
    mirror = Mirror(config.checkpoints, job.folder) if is_mirrored else None
    with CheckpointWriter(mirror) as writer:
        checkpoints = Checkpoints(
            job.folder,
            writer,
            job.world,
            job.reporter.warn,
            planned.data_key,
            job.decisions,
            deadline,
            every_steps=config.checkpoint_steps,
            every_seconds=config.checkpoint_seconds,
            write_epoch=write_epoch if config.keep_epochs else None,
            best_so_far=best_so_far,
        )
        checkpoint = checkpoints.read() if job.resume else None
        image_seconds = planned.estimates.image_seconds
        fitting = reserve_evaluation(deadline, config, planned.dataset, image_seconds)
        images = job.decisions.decide("validation images", lambda: fitting, COUNT)
        with naming_misplaced(lambda: planned.data.new_network(config)):
            trainer = _make_trainer(planned, net, images, checkpoints, shared, job)
        if checkpoint:
            trainer.resume(checkpoint)
            epoch, step = trainer.progress.epoch, trainer.progress.step
            place = (
                f"in epoch {epoch + 1}, after {step} of its steps"
                if step
                else f"after epoch {epoch}"
            )
            job.reporter.say(f"resumed {place}")
        if head and job.world.is_main:
            save_weights(start, net)
        trainer.begin(head.row if head else None)
        if deadline.is_set:
            deadline.reserve("saving", _SAVES_AT_THE_END * _time_saving(trainer))
        seconds = len(FRACTIONS) * images * image_seconds
        is_affordable = seconds <= _MAX_INTERPOLATION_FRACTION * deadline.remaining()
        if (head or start.exists()) and is_affordable:
            deadline.reserve("interpolation", seconds)
        progress = trainer.run()
        if trainer.pacer.ended_without_gain(progress):
            _report_early_end(deadline, job.reporter)
        job.world.wait_for_first_rank("first weights")
        deadline.release("interpolation")
        if start.exists() and progress.epoch and progress.best_accuracy >= 0:
            count = job.decisions.decide(
                "interpolations",
                lambda: _count_interpolations(progress, is_affordable, deadline),
                COUNT,
            )
            _interpolate(trainer, start, FRACTIONS[:count], images, job.reporter)
        trainer.finish()
    best = trainer.best_validation
    return trainer.classifier, progress, images if best is None else held_out_logits(best)


def _report_early_end(deadline: Deadline, reporter: Reporter) -> None:
    left_seconds = deadline.remaining()
    if deadline.is_set and left_seconds > _EARLY_FRACTION * deadline.seconds:
        reporter.say(
            f"training ended {duration(left_seconds)} early: validation no longer improved"
        )


def _time_saving(trainer: Trainer) -> float:
    """Write a checkpoint and return the seconds it took."""
    begun = time.perf_counter()
    trainer.checkpoints.save(trainer.update, trainer.progress)
    trainer.checkpoints.wait()
    return time.perf_counter() - begun


def _count_interpolations(progress: Progress, is_affordable: bool, deadline: Deadline) -> int:
    fitting = deadline.remaining() / max(progress.last_evaluation_seconds, 1e-9)
    return int(max(0, min(len(FRACTIONS), fitting))) if is_affordable else 0


def _interpolate(
    trainer: Trainer,
    start: Path,
    shares: Sequence[float],
    images: int,
    reporter: Reporter,
) -> None:
    """Keep weights between the first and the last if they validate better than both."""
    progress = trainer.progress
    for share in load_interpolated(trainer.classifier.net, start, shares):
        if trainer.keep_if_better(trainer.evaluate("validation", images)):
            progress.best_blend = share
    if progress.best_blend < 1:
        reporter.detail(
            f"blend: {percent(progress.best_blend)} of the way from the head's network to the last "
            f"epoch's validates best, {fixed_percent(progress.best_accuracy)}"
        )


def _make_trainer(
    planned: PlannedRun,
    net: nn.Module,
    images: int,
    checkpoints: Checkpoints,
    shared: Shared,
    job: RunJob,
) -> Trainer:
    """Make a trainer that evaluates so many images of each watched split at a time."""
    config, data, world = planned.config, planned.data, job.world
    dataset, device = data.dataset, data.device

    def make_loader(split: int, batch_size: int, with_next: bool = False) -> Loader:
        ids = dataset.ids(split)
        return Loader(data.images, ids, batch_size, device, world.rank, world.size, with_next)

    listener = Listener(
        job.reporter,
        job.folder.path if world.is_main else None,
        shared.loggers,
        job.decisions,
        config.epoch_count if _trains_by_epochs(job) else 0,
        config.log_every_steps,
    )
    update = make_update(
        config,
        net,
        dataset,
        data.normalization,
        device,
        world,
        listener,
        partial(checking_placement, job.folder, job.reporter),
    )
    evaluated = update.average.model if update.average else net
    classifier = Classifier(evaluated, data.normalization, config.precision, device)
    batch_size = evaluation_batch_size(device, dataset.format.model_size)
    watched = {"validation": VALIDATION, **({"test": TEST} if config.test_each_epoch else {})}
    trainer_data = TrainerData(
        make_loader(TRAIN, config.batch_size, update.augmentation.mixes),
        {name: make_loader(split, batch_size) for name, split in watched.items()},
        config.seed,
        lambda batch: joined([dataset.pack.index.locators[i] for i in batch.ids.tolist()]),
        count_recalibrated_steps(config, net),
    )
    lag = update.step.losses.lag + (world.size > 1)  # ranks stop a step after the first decides to
    pacer = _make_pacer(planned, trainer_data, images, lag, job)
    return Trainer(update, classifier, trainer_data, pacer, checkpoints, listener, shared.judge)


def _make_pacer(
    planned: PlannedRun, data: TrainerData, images: int, lag: int, job: RunJob
) -> Pacer:
    """Train by epochs, or until the deadline; segments on record are repeated first."""
    config, estimates = planned.config, planned.estimates
    steps_per_epoch = data.loader.steps
    if _trains_by_epochs(job):
        all_images = max(len(loader.ids) for loader in data.watched.values())
        return EpochPacer(config.epoch_count, steps_per_epoch, all_images, config.patience_epochs)
    evaluated = len(data.watched) * images
    if data.recalibrated_steps:
        evaluated += min(RECALIBRATION_IMAGES, len(data.loader.ids))
    pacer = DeadlinePacer(
        job.deadline,
        steps_per_epoch,
        estimates.step_seconds,
        images,
        evaluated * estimates.image_seconds,
        lag,
        config.patience_epochs,
    )
    return RecordedPacer(pacer, job.decisions)


def _trains_by_epochs(job: RunJob) -> bool:
    """Return whether epochs alone decide how long to train: no deadline, and no record of one."""
    return not (job.deadline.is_set or job.decisions.named("segment", SEGMENT))


def _announcing_weights(
    config: Config, size: tuple[int, int], reporter: Reporter
) -> Callable[[LoadedWeights], None]:
    """Return a function that reports loaded weights, for images of this (height, width)."""

    def announce(loaded: LoadedWeights) -> None:
        reporter.detail(loaded.sentence)
        expected = expected_input(config.model, config.weights, config.member)
        differences = expected.describe_differences(size, config.fit) if expected else ""
        if differences:
            reporter.detail(differences)

    return announce


def _fit_head(planned: PlannedRun, net: nn.Module, shared: Shared, job: RunJob) -> FittedHead:
    """Fit the head in a part of the time, or in all of it if nothing else is trained."""
    config = planned.config
    reserve_evaluation(job.deadline, config, planned.dataset, planned.estimates.image_seconds)
    job.world.report_activity("fitting the head")
    with job.world.watchdog_paused():  # every rank computes the same, in its own time
        return fit_head(
            config, planned.data, net, job, shared.features, measures_curve=shared.is_final
        )


def _without_training(
    planned: PlannedRun, net: nn.Module, head: FittedHead, shared: Shared, job: RunJob
) -> Trained:
    """A frozen backbone with its fitted head is already the trained network."""
    data = planned.data
    classifier = Classifier(net, data.normalization, planned.config.precision, data.device)
    progress = Progress(images=head.work.images, training_seconds=head.work.seconds)
    if job.world.is_main:
        progress.add_row(head.row)
        write_metrics(job.folder.path, progress.rows)
        shared.loggers.begin(0, 0)
        shared.loggers.log_epoch(head.row)
    # The temperature is that of the head which has not learned from validation images.
    validation_ids = data.dataset.ids(VALIDATION)[: len(head.validation_logits)]
    held_out = HeldOutLogits(validation_ids, head.validation_logits, head.validation_labels)
    temperature = calibrate_temperature(classifier, held_out, job.world)
    detector = fit_detector_on_features(
        classifier, head.training_features, head.validation_features, job.world
    )
    if head.refit_head:
        set_head(classifier.net, head.refit_head)
    seconds = {"training": head.seconds}
    return Trained(
        classifier,
        progress,
        temperature,
        detector,
        seconds,
        held_out,
        head.refit_images,
        head.learning_curve,
        head.left_out,
    )


def _calibrate(
    classifier: Classifier,
    progress: Progress,
    held_out: HeldOutLogits | int,
    seconds: dict[str, float],
    planned: PlannedRun,
    job: RunJob,
) -> Trained:
    """Fit the temperature, and the out-of-distribution detector on as many images as fit."""
    begun = time.perf_counter()
    dataset, image_seconds = planned.dataset, planned.estimates.image_seconds

    reserved_seconds = job.deadline.release("detector")

    def count_detector_images() -> int:
        """As many as time is set aside for, or fewer if images have become slower since then."""
        if not image_seconds:
            return DETECTOR_IMAGES
        seconds = max(0.0, min(reserved_seconds, job.deadline.remaining()))
        return min(DETECTOR_IMAGES, int(seconds / (2 * image_seconds) + _ROUNDING))

    validation, training = dataset.ids(VALIDATION), dataset.ids(TRAIN)
    if isinstance(held_out, int):
        ids = validation[:held_out]
        held_out = compute_held_out_logits(classifier, dataset.images, ids, job.world)
    temperature = calibrate_temperature(classifier, held_out, job.world)
    count = job.decisions.decide("detector images", count_detector_images, COUNT)
    detector = fit_detector_on_images(
        classifier, dataset.images, training[:count], validation[:count], job.world
    )
    seconds["calibration"] = time.perf_counter() - begun
    return Trained(classifier, progress, temperature, detector, seconds, held_out)
