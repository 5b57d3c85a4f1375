"""Fits a network's head on the features of its backbone: before fine-tuning, or instead of it.

D features, K classes, m training images, n validation images.
"""

import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.config import Config, find_unused_by_fitted_head
from onsight.data.index import SPLIT_NAMES, TEST, TRAIN, VALIDATION
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.out_of_distribution import compute_scores
from onsight.evaluation.predictions import HeldOutLogits
from onsight.evaluation.results import EpochRow
from onsight.features.choose_head import (
    ChosenHead,
    LearningCurvePoint,
    choose_head,
    count_curve_images,
    measure_learning_curve,
    split_rounds,
)
from onsight.features.feature_pass import MIRRORED, PLAIN, FeatureWork, SharedFeatures
from onsight.features.heads import (
    HiddenSettings,
    LabelledFeatures,
    LinearHead,
    compute_logits,
)
from onsight.models.catalog import is_user_spec
from onsight.models.classifier import Classifier
from onsight.models.head import (
    HiddenHead,
    feature_size,
    find_head,
    require_head,
    set_hidden_head,
    set_linear_head,
)
from onsight.step.build import loss_weights
from onsight.step.calibrate import DETECTOR_IMAGES
from onsight.text import fixed_percent, joined, plural
from onsight.training.evaluate import Evaluation
from onsight.training.hidden_layer import has_enough_images, try_hidden_layer
from onsight.training.job import Job
from onsight.training.load_features import FeatureLoader
from onsight.tune.training_data import TrainingData
from onsight.tune.work import expect_curve_seconds, expect_hidden_seconds, nominal_seconds

# Of a head on growing parts of the images in each fold, as a multiple of the first fit's time.
_CURVE_TIME = 8.0


@dataclass(frozen=True)
class FittedHead:
    """A head fitted on features."""

    row: EpochRow  # head as epoch 0 of the history
    work: FeatureWork  # what it took to compute features, in all trainings of the run
    seconds: float  # time for features and fitting
    validation_logits: Tensor  # head's logits of the validation images, (n, K)
    validation_labels: Tensor
    validation_features: Tensor  # their features of the last layer, (n, D)
    training_features: Tensor  # those of the first 1,000 training images, (m, D)
    # A head with the same settings fitted on the validation images too, to replace the head that
    # they evaluated. None if that one is final.
    refit_head: LinearHead | HiddenHead | None = None
    refit_images: int = 0  # images that refit_head was fitted on
    left_out: int = 0  # training images that there was no time to compute the features of
    # Accuracy with fewer training images; empty if the network is fine-tuned or time was short.
    learning_curve: tuple[LearningCurvePoint, ...] = ()


def uses_fitted_head(config: Config, net: nn.Module) -> bool:
    """Return whether a run fits its head on features.

    It does if the backbone is frozen or has pretrained weights.
    """
    head = find_head(net)
    can_be_fitted = isinstance(head, nn.Linear) and head.bias is not None
    is_needed = config.freeze or config.starts_from_weights
    return config.loss == "cross-entropy" and can_be_fitted and is_needed


def fit_head(
    config: Config,
    data: TrainingData,
    net: nn.Module,
    job: Job,
    shared: SharedFeatures,
    *,
    measures_curve: bool = True,
) -> FittedHead:
    """Compute features, choose and fit a head, and put it into the network.

    As many images are used as there is time for. Decisions that depend on time are recorded in
    the job, or repeated from its record.

    Args:
        net: The network, whose head is replaced.
        job: Its deadline limits the time.
        shared: Features that other trainings of the run have computed.
        measures_curve: Whether to fit heads on fewer images, too, if there is time.
    """
    started = time.perf_counter()
    if config.freeze:
        _report_unused_settings(config, job)
    loader = FeatureLoader(config, data, net, job, shared)
    validation = loader.load("validation", VALIDATION, [PLAIN], 0.2)
    views = [PLAIN, MIRRORED] if config.flip else [PLAIN]
    train = loader.load("training", TRAIN, views, 0.9)
    classes, class_weights = len(data.dataset.classes), loss_weights(config, data.dataset)
    chosen = choose_head(train, validation, classes, class_weights)
    seconds_before = loader.left_seconds()
    head = chosen.settings.fit(train, classes, class_weights)
    if (
        _may_add_hidden_layer(config, data, net)
        and has_enough_images(train, validation)
        and loader.has_time_for("hidden layer", _expect_hidden_seconds(config, data, len(train)))
    ):
        chosen, head = try_hidden_layer(chosen, head, train, validation, class_weights, config.seed)
    set_head(net, head)
    logits = compute_logits(head, validation.views[0])
    seconds = time.perf_counter() - started
    train_loss = _mean_loss(compute_logits(head, train.views[0]), train.labels)
    row = _make_row(train_loss, logits, validation.labels, loader.work, seconds)
    summary = _summarise(chosen, train, loader, seconds)
    fit_seconds = seconds_before - loader.left_seconds()  # nan without a deadline
    refit_data = loader.load_for_refit(train, views, fit_seconds) if config.freeze else None
    refit_head = None
    if refit_data:
        refit_head = chosen.settings.fit(refit_data, classes, class_weights)
        summary += f"; then refit on all {len(refit_data):,} training and validation images"
    job.reporter.detail(summary)
    left_out = len(data.dataset.ids(TRAIN)) - len(train)
    if left_out and config.freeze:
        job.reporter.warn(f"the head {describe_left_out(left_out, len(train) + left_out)}")
    learning_curve: list[LearningCurvePoint] = []
    if measures_curve and config.freeze:
        rounds = split_rounds(train, validation)
        curve_seconds = _CURVE_TIME * fit_seconds
        if isinstance(chosen.settings, HiddenSettings):
            run_seconds = nominal_seconds(config, len(data.dataset.pack))
            curve_seconds = expect_curve_seconds(count_curve_images(rounds), run_seconds)
        if loader.has_time_for("learning curve", curve_seconds):
            learning_curve = measure_learning_curve(rounds, chosen.settings, classes, class_weights)
    return FittedHead(
        row=row,
        work=loader.work,
        seconds=time.perf_counter() - started,
        validation_logits=logits,
        validation_labels=validation.labels,
        validation_features=take_last_layer(net, validation.views[0]),
        training_features=take_last_layer(net, train.views[0, :DETECTOR_IMAGES]),
        refit_head=refit_head,
        refit_images=len(refit_data) if refit_data else 0,
        left_out=left_out,
        learning_curve=tuple(learning_curve),
    )


def describe_left_out(left_out: int, images: int) -> str:
    """Return how many of the training images a head was fitted on, after its name."""
    return (
        f"was fitted on {images - left_out:,} of {images:,} training images, as many as there was "
        "time for"
    )


def take_last_layer(net: nn.Module, features: Tensor) -> Tensor:
    """Return those of a head's inputs (n, D) that are features of the last layer, in float32."""
    return features[:, : feature_size(net)].float()


def evaluates_on_features(config: Config, job: Job) -> bool:
    """Return whether a fold's images are evaluated on features that other folds learn from."""
    return config.freeze and config.tta == "none" and job.world.size == 1


def evaluate_head(
    config: Config,
    data: TrainingData,
    classifier: Classifier,
    job: Job,
    shared: SharedFeatures,
) -> Evaluation | None:
    """Evaluate a frozen network on the features of the test images, which other folds learn from.

    Returns:
        The predictions; None if features are not all that it takes.
    """
    if not evaluates_on_features(config, job) or not uses_fitted_head(config, classifier.net):
        return None
    loader = FeatureLoader(config, data, classifier.net, job, shared)
    ids = data.dataset.ids(TEST)
    features = loader.compute(ids, PLAIN).to(classifier.device)
    labels = torch.from_numpy(data.dataset.pack.index.labels)[ids].long()
    with torch.inference_mode():
        head = require_head(classifier.net)
        logits = compute_logits(head, features).float().cpu()
        table = HeldOutLogits(ids, logits, labels).tabulate(classifier.temperature)
        scores = compute_scores(classifier, take_last_layer(classifier.net, features))
    per_image = replace(table, out_of_distribution=scores.cpu().numpy())
    return Evaluation(per_image, None, SPLIT_NAMES[TEST])


def set_head(net: nn.Module, head: LinearHead | HiddenHead) -> None:
    """Replace the network's head with a fitted one. Raises ModelError."""
    if isinstance(head, HiddenHead):
        set_hidden_head(net, head)
    else:
        set_linear_head(net, head.weight, head.bias)


def _report_unused_settings(config: Config, job: Job) -> None:
    # A line rather than a warning, because warnings are repeated for each fold.
    unused = find_unused_by_fitted_head(config)
    if unused:
        have = "has" if len(unused) == 1 else "have"
        job.reporter.say(
            "the backbone is frozen and its head is not trained but fitted: "
            f"{joined(unused)} {have} no effect"
        )


def _expect_hidden_seconds(config: Config, data: TrainingData, images: int) -> float:
    folds = data.dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    return expect_hidden_seconds(images, trainings, nominal_seconds(config, len(data.dataset.pack)))


def _may_add_hidden_layer(config: Config, data: TrainingData, net: nn.Module) -> bool:
    """Return whether the network's layers may change: not the user's own, nor before training."""
    is_users = data.module is not None or is_user_spec(config.model)
    return config.freeze and not is_users and find_head(net) is not net


def _mean_loss(logits: Tensor, labels: Tensor) -> float | None:
    return float(F.cross_entropy(logits, labels)) if len(labels) else None


def _make_row(
    train_loss: float | None, logits: Tensor, labels: Tensor, work: FeatureWork, seconds: float
) -> EpochRow:
    """Return the row for epoch 0 of the history, from the logits of the validation images."""
    correct = int((logits.argmax(dim=1) == labels).sum())
    accuracy = proportion_with_interval("validation_accuracy", correct, len(labels))
    return {
        "epoch": 0,
        "train_loss": train_loss or 0.0,
        "learning_rate": 0.0,
        "seconds": seconds,
        "images_per_second": work.images_per_second,
        "data_wait_share": 0.0,
        "lines": [],
        "validation_loss": _mean_loss(logits, labels),
        "validation_accuracy": accuracy["validation_accuracy"],
        "validation_accuracy_low": accuracy["validation_accuracy_low"],
        "validation_accuracy_high": accuracy["validation_accuracy_high"],
        "validation_images": len(labels),
    }


def _summarise(
    chosen: ChosenHead, train: LabelledFeatures, loader: FeatureLoader, seconds: float
) -> str:
    count = len(chosen.labels)
    accuracy = proportion_with_interval("accuracy", chosen.correct, count)
    low, high = accuracy["accuracy_low"] or 0.0, accuracy["accuracy_high"] or 0.0
    speed = loader.work.images_per_second
    rate = f"computed at {speed:,.0f} images/s" if speed else "reopened from the cache"
    mirrored = " and their mirror images" if len(train.views) > 1 else ""
    return (
        f"head: {chosen.settings} on the features of {plural(len(train), 'image')}{mirrored} "
        f"({rate}): {fixed_percent(accuracy['accuracy'])} {chosen.method} "
        f"({100 * low:.1f} to {100 * high:.1f}, n = {count:,}), {seconds:.1f} s"
    )
