"""Fits a network's head on the features of its backbone: before fine-tuning, or instead of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.results import EpochRow
from onsight.evaluation.temperature import fit_temperature
from onsight.features.choose_head import (
    ChosenHead,
    LearningCurvePoint,
    choose_head,
    measure_learning_curve,
    split_rounds,
)
from onsight.features.feature_pass import (
    MIRRORED,
    PLAIN,
    FeatureStore,
    SharedFeatures,
    compute_features,
    feature_loader,
    features_key,
)
from onsight.features.heads import (
    HiddenSettings,
    LabelledFeatures,
    LinearHead,
    hidden_fit_operations,
)
from onsight.models.catalog import is_user_spec
from onsight.models.classifier import Classifier
from onsight.models.head import HiddenHead, find_head, set_hidden_head, set_linear_head
from onsight.report.console import Reporter
from onsight.step.build import loss_weights
from onsight.step.calibrate import DETECTOR_IMAGES
from onsight.text import fixed_percent, plural
from onsight.training.decisions import Decisions
from onsight.tune.training_data import TrainingData

_AGAIN = 1.5  # times as long as fitting on the training images, to be on the safe side
_CURVE = 8.0  # the same for heads on parts of the images, if judged by folds


def fits_head(config: Config, net: nn.Module) -> bool:
    """Whether a run fits its head on features: it is frozen, or starts from published weights."""
    head = find_head(net)
    plain = config.loss == "cross-entropy" and isinstance(head, nn.Linear) and head.bias is not None
    return plain and (config.freeze or config.starts_from_weights)


@dataclass(frozen=True)
class FittedHead:
    """What fitting a head gave: a row for the history, and its cost.

    images: images whose features were computed, counting each view. logits, labels: (n, K) and
    (n,) of the validation images, features: (n, D) theirs; seen: (m, D) of the first 1,000
    training images. kept: the same head fitted on the validation images too, to
    replace the one that they judged; None where that one stays.
    kept_images: how many kept is fitted on. fewer: what it achieved with fewer images, if it is not
    fine-tuned and there was time to find out.
    """

    row: EpochRow
    images: int
    seconds: float
    logits: Tensor
    labels: Tensor
    features: Tensor
    seen: Tensor
    kept: LinearHead | HiddenHead | None = None
    kept_images: int = 0
    fewer: tuple[LearningCurvePoint, ...] = ()


def fit_head(
    config: Config,
    data: TrainingData,
    classifier: Classifier,
    reporter: Reporter,
    decisions: Decisions | None = None,
    left_seconds: Callable[[], float] = lambda: math.inf,
    shared: SharedFeatures | None = None,
) -> FittedHead:
    """Compute features, choose and fit the head, and put it into the classifier's network.

    decisions: what is decided by the time left is kept here, or repeated; left_seconds: the time
    left for it; as many images are used as there is time for. shared: features that other trainings
    of the run have computed.
    """
    begun = time.perf_counter()
    shared = shared or SharedFeatures()
    decisions = decisions or Decisions()
    passes = _FeaturePasses(config, data, classifier, reporter, decisions, left_seconds, shared)
    validation = passes.labelled("validation", VALIDATION, [PLAIN], 0.2)
    views = [PLAIN, MIRRORED] if config.flip else [PLAIN]
    train = passes.labelled("training", TRAIN, views, 0.9)
    classes = len(data.dataset.classes)
    weights = loss_weights(config, data.dataset)
    chosen = choose_head(train, validation, classes, weights)
    before_seconds = left_seconds()
    head = chosen.settings.fit(train, classes, weights)
    if _may_have_hidden_layer(config, data, classifier.net):
        chosen, head = try_hidden_layer(
            chosen, head, train, validation, classes, weights, config.seed, decisions, left_seconds
        )
    put_head(classifier.net, head)
    seconds = time.perf_counter() - begun
    loss = _loss(head(train.views[0]), train.labels)
    logits = head(validation.views[0])
    row = _row(loss, logits, validation.labels, passes.images, seconds)
    sentence = _sentence(chosen, passes, len(train), len(train.views), seconds)
    fitting_seconds = before_seconds - left_seconds()
    every = passes.with_validation(train, views, fitting_seconds) if config.freeze else None
    kept = None
    if every:
        kept = chosen.settings.fit(every, classes, weights)
        sentence += f"; then refit on all {len(every):,} training and validation images"
    reporter.say(sentence)
    fewer: list[LearningCurvePoint] = []

    def has_time_for_curve() -> bool:
        # Without a limit the seconds are nan, which is never more.
        return not _CURVE * fitting_seconds > left_seconds()

    if config.freeze and decisions.decide("learning curve", has_time_for_curve):
        rounds = split_rounds(train, validation)
        fewer = measure_learning_curve(rounds, chosen.settings, classes, weights)
    seconds = time.perf_counter() - begun
    count = len(every) if every else 0
    judged = logits, validation.labels, validation.views[0], train.views[0, :DETECTOR_IMAGES]
    return FittedHead(row, passes.images, seconds, *judged, kept, count, tuple(fewer))


def put_head(net: nn.Module, head: LinearHead | HiddenHead) -> None:
    """Make a fitted head the network's own. Raises ModelError."""
    if isinstance(head, HiddenHead):
        set_hidden_head(net, head)
    else:
        set_linear_head(net, head.weight, head.bias)


def _may_have_hidden_layer(config: Config, data: TrainingData, net: nn.Module) -> bool:
    """Whether the network's layers may change: not if they are trained, or somebody's own."""
    own = data.module is not None or is_user_spec(config.model)
    return config.freeze and not own and find_head(net) is not net


class _FeaturePasses:
    """Computes the features of a run's images, as far as there is time, and counts them."""

    def __init__(
        self,
        config: Config,
        data: TrainingData,
        classifier: Classifier,
        reporter: Reporter,
        decisions: Decisions,
        left_seconds: Callable[[], float],
        shared: SharedFeatures,
    ) -> None:
        self.data, self.classifier, self.reporter = data, classifier, reporter
        self.decisions = decisions
        self.left_seconds = left_seconds
        self.shared = shared
        self.store = FeatureStore(find_cache_folder(config.cache_folder))
        self.images = 0
        self.seconds = 0.0

    def labelled(
        self, name: str, split: int, views: list[str], share_of_time: float
    ) -> LabelledFeatures:
        """The features of a split's images in these views, with their labels.

        name: by which the number of features is on record.
        """
        dataset = self.data.dataset
        ids = dataset.ids(split)
        labels = torch.from_numpy(dataset.pack.index.labels)[ids].long()
        deadline = time.monotonic() + share_of_time * self.left_seconds()
        computed: list[Tensor] = []
        for view in views:
            features = self._pass(f"{view} {name} features", ids, view, deadline)
            if computed and len(features) < len(computed[0]):
                break  # no time for all of another view: do without it
            computed.append(features)
        views_of_all = torch.stack(computed)
        return LabelledFeatures(views_of_all, labels[: views_of_all.shape[1]])

    def with_validation(
        self, train: LabelledFeatures, views: list[str], fitting_seconds: float
    ) -> LabelledFeatures | None:
        """The training and validation images, if the head may and can be fitted on both.

        fitting_seconds: what fitting it on the training images took. None where validation
        images judge the run, or where there was no time for all training images.
        """
        dataset = self.data.dataset
        judged_by_others = (dataset.splits == TEST).any() or dataset.folds.value > 1
        if not judged_by_others or len(train) < len(dataset.ids(TRAIN)):
            return None
        validation = self.labelled("refit", VALIDATION, views[: len(train.views)], 0.5)
        is_complete = len(validation) == len(dataset.ids(VALIDATION)) > 0
        if not is_complete or len(validation.views) < len(train.views):
            return None

        def is_in_time() -> bool:
            # Without a limit the seconds are nan, which is never more.
            return not _AGAIN * fitting_seconds > self.left_seconds()

        return train.joined(validation) if self.decisions.decide("refit", is_in_time) else None

    def _pass(self, name: str, ids: Tensor, view: str, deadline: float) -> Tensor:
        """The features of the first images: as many as on record, or as there is time for."""
        computed: list[Tensor] = []

        def compute() -> int:
            computed.append(self._load(ids, view, deadline))
            return len(computed[0])

        count = self.decisions.decide(name, compute)
        return computed[0] if computed else self._load(ids[:count], view, math.inf)

    def _load(self, ids: Tensor, view: str, deadline: float) -> Tensor:
        dataset = self.data.dataset
        digests = torch.from_numpy(dataset.pack.digests)[ids]
        key = features_key(self.classifier, dataset.format, digests, view)
        kind = view, self.classifier.normalization, self.classifier.precision

        def rows() -> Tensor:
            return self.shared.get(kind, ids, lambda some: self._compute(some, view, deadline))

        return self.store.get(key, rows, len(ids))

    def _compute(self, ids: Tensor, view: str, deadline: float) -> Tensor:
        device = self.classifier.device
        loader = feature_loader(Loader(self.data.images, ids, 1, device))
        begun = time.perf_counter()
        with self.reporter.bar(f"features ({view})", len(ids)) as bar:
            features = compute_features(
                self.classifier, loader.in_order(), view, bar.advance, deadline
            )
        self.seconds += time.perf_counter() - begun
        self.images += len(features)
        return features


def _loss(logits: Tensor, labels: Tensor) -> float | None:
    return float(F.cross_entropy(logits, labels)) if len(labels) else None


def _row(
    train_loss: float | None, logits: Tensor, labels: Tensor, images: int, seconds: float
) -> EpochRow:
    """The head as epoch 0 of the history."""
    right = int((logits.argmax(dim=1) == labels).sum())
    accuracy = proportion_with_interval("validation_accuracy", right, len(labels))
    return {
        "epoch": 0,
        "train_loss": train_loss or 0.0,
        "learning_rate": 0.0,
        "seconds": seconds,
        "images_per_second": images / seconds,
        "data_wait_share": 0.0,
        "lines": [],
        "validation_loss": _loss(logits, labels),
        "validation_accuracy": accuracy["validation_accuracy"],
        "validation_accuracy_low": accuracy["validation_accuracy_low"],
        "validation_accuracy_high": accuracy["validation_accuracy_high"],
        "validation_images": len(labels),
    }


def _sentence(
    chosen: ChosenHead, passes: _FeaturePasses, images: int, views: int, seconds: float
) -> str:
    count = len(chosen.labels)
    found = proportion_with_interval("accuracy", chosen.right, count)
    low, high = found["accuracy_low"] or 0.0, found["accuracy_high"] or 0.0
    if passes.images:
        rate = f"computed at {passes.images / passes.seconds:,.0f} images/s"
    else:
        rate = "reopened from the cache"
    mirrored = " and their mirror images" if views > 1 else ""
    return (
        f"head: {chosen.settings} on the features of {plural(images, 'image')}{mirrored} "
        f"({rate}): {fixed_percent(found['accuracy'])} {chosen.how} "
        f"({100 * low:.1f} to {100 * high:.1f}, n = {count:,}), {seconds:.1f} s"
    )


_FEWEST, _FEWEST_JUDGED = 500, 100  # training and validation images; with fewer, luck decides
_GAIN = 0.01  # of the loss; for less, another layer is not worth having
_FITS = 2  # on training images, and later on those of validation too
_OPERATIONS_PER_SECOND = 1e10  # of a slow processor


def try_hidden_layer(
    chosen: ChosenHead,
    linear: LinearHead | HiddenHead,
    train: LabelledFeatures,
    validation: LabelledFeatures,
    classes: int,
    class_weights: Tensor | None,
    seed: int,
    decisions: Decisions,
    left_seconds: Callable[[], float],
) -> tuple[ChosenHead, LinearHead | HiddenHead]:
    """The choice and the head fitted on training images: the linear one, or a better one.

    It takes the linear head's place if validation images show that clearly, not by a hair: it is
    one more candidate judged by the same images.
    """
    has_enough = len(train) >= _FEWEST and len(validation) >= _FEWEST_JUDGED
    seconds = _FITS * hidden_fit_operations(train, classes) / _OPERATIONS_PER_SECOND
    if not has_enough or not decisions.decide("hidden layer", lambda: seconds <= left_seconds()):
        return chosen, linear
    settings = HiddenSettings(seed)
    hidden = settings.fit(train, classes, class_weights)
    features, labels = validation.views[0], validation.labels
    logits: Tensor = hidden(features)
    if not is_clearly_better(logits, linear(features), labels):
        return chosen, linear
    return replace(chosen, settings=settings, logits=logits, labels=labels), hidden


def is_clearly_better(tried: Tensor, usual: Tensor, labels: Tensor) -> bool:
    """Whether logits (n, K) are as often right as the usual ones, and their loss is lower.

    By a hundredth, and by more than one standard error of the mean difference. Each is judged at
    the temperature that suits it: one is fitted in the end, whichever head is kept.
    """
    right = [int((logits.argmax(dim=1) == labels).sum()) for logits in (tried, usual)]
    before = _losses(usual, labels)
    gain = before - _losses(tried, labels)
    least = torch.maximum(gain.std() / len(gain) ** 0.5, _GAIN * before.mean())
    return right[0] >= right[1] and bool(gain.mean() > least)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    cooled = logits.double() / fit_temperature(logits, labels)
    return F.cross_entropy(cooled, labels, reduction="none")
