"""Adds a hidden layer to a fitted head, if that is clearly better on validation images.

D features, K classes, n validation images.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.evaluation.temperature import fit_temperature
from onsight.features.choose_head import ChosenHead
from onsight.features.heads import (
    HiddenSettings,
    LabelledFeatures,
    LinearHead,
    compute_logits,
    count_hidden_steps,
)
from onsight.models.head import HiddenHead
from onsight.tune.work import nominal_seconds

# A hidden layer is tried with at least this many images; with fewer, the comparison is noise.
_MIN_HIDDEN_TRAINING, _MIN_HIDDEN_VALIDATION = 500, 100
_FITS = 2  # the second is the refit
_STEP_SECONDS = 0.015  # nominal, on two cores
_MAX_FRACTION = 0.1  # of the run's time, for all trainings together
_MIN_GAIN = 0.01  # smallest relative decrease of the loss that is worth a hidden layer


def has_enough_images(train: LabelledFeatures, validation: LabelledFeatures) -> bool:
    """Return whether there are enough images to fit and compare a head with a hidden layer."""
    return len(train) >= _MIN_HIDDEN_TRAINING and len(validation) >= _MIN_HIDDEN_VALIDATION


def expect_seconds(config: Config, dataset: Dataset, images: int) -> float:
    """Return about how long it takes to try and to refit a hidden layer on so many images.

    Infinity if that is much of the run's time: it gains 3 to 4 points on some images, and nothing
    on others (NOTEBOOK.md).
    """
    folds = dataset.folds.value
    trainings = folds + 1 if folds > 1 else 1
    seconds = _FITS * count_hidden_steps(images) * _STEP_SECONDS
    limit = _MAX_FRACTION * nominal_seconds(config, len(dataset.pack))
    return seconds if trainings * seconds <= limit else math.inf


def try_hidden_layer(
    chosen: ChosenHead,
    linear: LinearHead | HiddenHead,
    train: LabelledFeatures,
    validation: LabelledFeatures,
    class_weights: Tensor | None,
    seed: int,
) -> tuple[ChosenHead, LinearHead | HiddenHead]:
    """Fit a head with a hidden layer, and return it if it is clearly better than the linear one.

    Args:
        validation: The images that both heads are compared on.
        class_weights: The weight of each class in the loss, (K,).
        seed: The seed of the hidden layer.

    Returns:
        The settings and the head that did better.
    """
    settings = HiddenSettings(seed)
    hidden = settings.fit(train, chosen.logits.shape[1], class_weights)
    features, labels = validation.views[0], validation.labels
    logits = compute_logits(hidden, features)
    if not is_clearly_better(logits, compute_logits(linear, features), labels):
        return chosen, linear
    return replace(chosen, settings=settings, logits=logits, labels=labels), hidden


def is_clearly_better(logits: Tensor, baseline: Tensor, labels: Tensor) -> bool:
    """Return whether logits (n, K) are at least as accurate as the baseline, with a lower loss.

    The loss must be lower by 1%, and by more than one standard error of the mean difference. Each
    loss is computed at the temperature that fits the logits, because the final head gets one too.
    """
    correct, baseline_correct = (
        int((outputs.argmax(dim=1) == labels).sum()) for outputs in (logits, baseline)
    )
    baseline_losses = _calibrated_losses(baseline, labels)
    gain = baseline_losses - _calibrated_losses(logits, labels)
    min_gain = torch.maximum(gain.std() / len(gain) ** 0.5, _MIN_GAIN * baseline_losses.mean())
    return correct >= baseline_correct and bool(gain.mean() > min_gain)


def _calibrated_losses(logits: Tensor, labels: Tensor) -> Tensor:
    calibrated = logits.double() / fit_temperature(logits, labels)
    return F.cross_entropy(calibrated, labels, reduction="none")
