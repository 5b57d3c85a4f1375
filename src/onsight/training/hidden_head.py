"""Whether a head with a hidden layer does better than the best linear one, judged on validation."""

from collections.abc import Callable
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
    hidden_fit_operations,
)
from onsight.models.head import HiddenHead

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
    left_seconds: Callable[[], float],
) -> tuple[ChosenHead, LinearHead | HiddenHead]:
    """The choice and the head fitted on training images: the linear one, or a better one.

    It takes the linear head's place if validation images show that clearly, not by a hair: it is
    one more candidate judged by the same images.
    """
    has_enough = len(train) >= _FEWEST and len(validation) >= _FEWEST_JUDGED
    seconds = _FITS * hidden_fit_operations(train, classes) / _OPERATIONS_PER_SECOND
    if not has_enough or seconds > left_seconds():
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
