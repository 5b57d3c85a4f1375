"""Adds a hidden layer to a fitted head, if that is clearly better on validation images.

D features, K classes, n validation images.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.evaluation.temperature import fit_temperature
from onsight.features.choose_head import ChosenHead
from onsight.features.heads import (
    HiddenSettings,
    LabelledFeatures,
    LinearHead,
    compute_logits,
)
from onsight.models.head import HiddenHead
from onsight.tune.work import MIN_HIDDEN_TRAINING, MIN_HIDDEN_VALIDATION

_MIN_GAIN = 0.01  # smallest relative decrease of the loss that is worth a hidden layer


def has_enough_images(train: LabelledFeatures, validation: LabelledFeatures) -> bool:
    """Return whether there are enough images to fit and compare a head with a hidden layer."""
    return len(train) >= MIN_HIDDEN_TRAINING and len(validation) >= MIN_HIDDEN_VALIDATION


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
