"""Chooses the settings of a head by validation images, or by cross-validation if there are few.

K classes, D features, m evaluated images.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.features.heads import (
    HeadSettings,
    HiddenSettings,
    LabelledFeatures,
    LinearHead,
    compute_logits,
    fit_linear,
)

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)  # from strong to weak
COARSE = (0.3, 0.03, 3e-3)  # penalties that suffice to compare backbones

_MIN_VALIDATION = 100  # with fewer validation images, cross-validation is used
_SMALL = 100  # with fewer images in total, cross-validation has _FOLDS, otherwise _FOLDS_IF_LARGE
_FOLDS, _FOLDS_IF_LARGE = 5, 3
_MAX_IMAGES = 5000  # images that are fitted to compare penalties
_ITERATIONS = 15  # iterations per penalty; each fit starts from the head of the previous penalty
_PATIENCE = 2  # the search ends after this many consecutive penalties without improvement
_CURVE_SHARES = (0.125, 0.25, 0.5, 1.0)  # fractions of the images, for the learning curve

Round = tuple[LabelledFeatures, LabelledFeatures]  # (images to fit, images to evaluate)


@dataclass(frozen=True)
class ChosenHead:
    """The best settings, and their results on held-out images."""

    settings: HeadSettings | HiddenSettings
    logits: Tensor  # logits of the held-out images, (m, K)
    labels: Tensor  # labels of the held-out images, (m,)
    method: str  # how images were held out, in words

    @property
    def correct(self) -> int:
        """The number of held-out images that were classified correctly."""
        return int((self.logits.argmax(dim=1) == self.labels).sum())


class LearningCurvePoint(NamedTuple):
    """The result of a head that was fitted on some of the images."""

    images: int  # images that it was fitted on
    correct: int  # evaluated images that it classified correctly
    evaluated: int  # evaluated images


def choose_head(
    train: LabelledFeatures,
    validation: LabelledFeatures,
    classes: int,
    class_weights: Tensor | None = None,
    penalties: tuple[float, ...] = PENALTIES,
) -> ChosenHead:
    """Choose the penalty with the lowest loss on held-out images, or nearest class mean.

    Nearest class mean is chosen if it is more accurate. With fewer than 100 validation images, the
    training and validation images together are cross-validated: in 5 folds, or in 3 from 100
    images on.

    Args:
        validation: The validation images.
        class_weights: The weight of each class in the loss, float (K,).
        penalties: The penalties to try, from strong to weak.
    """
    rounds = split_rounds(train, validation)
    if len(validation) >= _MIN_VALIDATION:
        method = "on validation images"
    else:
        method = f"by {len(rounds)}-fold cross-validation"
    labels = torch.cat([evaluated.labels for _, evaluated in rounds])
    best: ChosenHead | None = None
    for settings, logits in _try_settings(rounds, classes, class_weights, penalties):
        candidate = ChosenHead(settings, logits, labels, method)
        if best is None or _is_better(candidate, best):
            best = candidate
    assert best is not None
    return best


def split_rounds(train: LabelledFeatures, validation: LabelledFeatures) -> list[Round]:
    """Split images into rounds of images to fit and images to evaluate.

    There is one round if validation images suffice, otherwise one per fold. Each image is evaluated
    at most once. At most 5,000 images are fitted, in one view.
    """
    rounds = [(train, validation)]
    if len(validation) < _MIN_VALIDATION:
        rounds = list(_split_folds(train.join(validation)))
    # One view suffices to compare settings. Images are numbered by digest, so the first are a
    # random sample.
    return [
        (LabelledFeatures(fitted.views[:1, :_MAX_IMAGES], fitted.labels[:_MAX_IMAGES]), evaluated)
        for fitted, evaluated in rounds
    ]


def measure_learning_curve(
    rounds: list[Round],
    settings: HeadSettings | HiddenSettings,
    classes: int,
    class_weights: Tensor | None,
) -> list[LearningCurvePoint]:
    """Fit heads on growing parts of each round's images, and evaluate them.

    Args:
        rounds: The images to fit and to evaluate.
        class_weights: The weight of each class in the loss, float (K,).
    """
    points = []
    for share in _CURVE_SHARES:
        images = correct = total = 0
        for fitted, evaluated in rounds:
            order = torch.randperm(len(fitted), generator=torch.Generator().manual_seed(0))
            part = fitted.take(order[: _count_part(share, fitted)])
            logits = compute_logits(settings.fit(part, classes, class_weights), evaluated.views[0])
            images += len(part)
            correct += int((logits.argmax(dim=1) == evaluated.labels).sum())
            total += len(evaluated)
        points.append(LearningCurvePoint(images // len(rounds), correct, total))
    return points


def count_curve_images(rounds: list[Round]) -> list[int]:
    """Return how many images each head of a learning curve is fitted on."""
    return [_count_part(share, fitted) for share in _CURVE_SHARES for fitted, _ in rounds]


def _count_part(share: float, fitted: LabelledFeatures) -> int:
    return max(1, int(share * len(fitted)))


def _try_settings(
    rounds: list[Round],
    classes: int,
    class_weights: Tensor | None,
    penalties: tuple[float, ...],
) -> Iterator[tuple[HeadSettings, Tensor]]:
    """Yield each setting with the logits of all evaluated images."""
    starts: list[LinearHead | None] = [None] * len(rounds)
    best_loss, worse = float("inf"), 0
    labels = torch.cat([evaluated.labels for _, evaluated in rounds])
    for penalty in penalties:
        heads = [
            fit_linear(penalty, fitted, classes, class_weights, start, _ITERATIONS)
            for (fitted, _), start in zip(rounds, starts, strict=True)
        ]
        starts = list(heads)
        logits = _evaluate(heads, rounds)
        yield HeadSettings(penalty), logits
        loss = float(F.cross_entropy(logits, labels))
        worse = worse + 1 if loss > best_loss else 0
        best_loss = min(best_loss, loss)
        if worse >= _PATIENCE:
            break
    heads = [fit_linear(None, fitted, classes, class_weights) for fitted, _ in rounds]
    yield HeadSettings(None), _evaluate(heads, rounds)


def _evaluate(heads: list[LinearHead], rounds: list[Round]) -> Tensor:
    pairs = zip(heads, rounds, strict=True)
    return torch.cat([compute_logits(head, evaluated.views[0]) for head, (_, evaluated) in pairs])


def _is_better(candidate: ChosenHead, best: ChosenHead) -> bool:
    if candidate.settings == HeadSettings(None):
        return candidate.correct > best.correct
    losses = [float(F.cross_entropy(head.logits, head.labels)) for head in (candidate, best)]
    return losses[0] < losses[1]


def _split_folds(data: LabelledFeatures) -> Iterator[Round]:
    """Yield the images to fit and to evaluate in each fold, with each class divided evenly."""
    folds = _FOLDS if len(data) < _SMALL else _FOLDS_IF_LARGE
    fold = torch.empty(len(data), dtype=torch.int64)
    order = data.labels.argsort(stable=True)
    fold[order] = torch.arange(len(data)) % folds
    for index in range(folds):
        evaluated = fold == index
        if evaluated.any() and not evaluated.all():
            yield data.take((~evaluated).nonzero()[:, 0]), data.take(evaluated.nonzero()[:, 0])
