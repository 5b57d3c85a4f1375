"""The choice of a head by validation images, or by cross-validation if there are few.

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
    fit_linear,
)

# Weights of the penalty beside the mean loss, strong to weak.
PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)
COARSE = (0.3, 0.03, 3e-3)  # penalties that suffice to compare backbones

_FEW = 100  # validation images; with fewer, the choice would be luck
_FOLDS, _FOLDS_OF_MANY, _MANY = 5, 3, 100  # folds, folds of many images, images that count as many
_MAX_FITTED = 5000  # most images that a penalty is chosen with
_ITERATIONS = 15  # iterations per penalty while choosing; each starts from the previous head
_WORSE = 2  # successive weaker penalties with a worse result, after which the search ends
_CURVE_SHARES = (0.125, 0.25, 0.5, 1.0)

Round = tuple[LabelledFeatures, LabelledFeatures]  # (fitted images, evaluated images)


@dataclass(frozen=True)
class ChosenHead:
    """The settings that did best, and their logits of images that the head was not fitted to."""

    settings: HeadSettings | HiddenSettings
    logits: Tensor  # (m, K)
    labels: Tensor  # (m,)
    how: str  # how the images were held out

    @property
    def right(self) -> int:
        """The number of held-out images that were classified correctly."""
        return int((self.logits.argmax(dim=1) == self.labels).sum())


class LearningCurvePoint(NamedTuple):
    """The number of evaluated images that a head fitted on fewer images classifies correctly."""

    images: int
    right: int
    evaluated: int


def choose_head(
    train: LabelledFeatures,
    validation: LabelledFeatures,
    classes: int,
    class_weights: Tensor | None = None,
    penalties: tuple[float, ...] = PENALTIES,
) -> ChosenHead:
    """Try penalties from strong to weak, and nearest class mean; the least held-out loss wins.

    Nearest class mean must be more accurate to win. With fewer than 100 validation images,
    training and validation images are cross-validated together in five folds, or three if there
    are many.
    """
    rounds = split_rounds(train, validation)
    if len(validation) >= _FEW:
        how = "on validation images"
    else:
        how = f"by {len(rounds)}-fold cross-validation"
    labels = torch.cat([evaluated.labels for _, evaluated in rounds])
    best: ChosenHead | None = None
    for settings, logits in _try_settings(rounds, classes, class_weights, penalties):
        candidate = ChosenHead(settings, logits, labels, how)
        if best is None or _is_better(candidate, best):
            best = candidate
    assert best is not None
    return best


def split_rounds(train: LabelledFeatures, validation: LabelledFeatures) -> list[Round]:
    """Split images into rounds of fitted images, at most 5,000 in one view, and evaluated ones.

    Each image is evaluated at most once.
    """
    rounds = [(train, validation)]
    if len(validation) < _FEW:
        rounds = list(_folds(train.joined(validation)))
    return [(_first_view(fitted), evaluated) for fitted, evaluated in rounds]


def measure_learning_curve(
    rounds: list[Round],
    settings: HeadSettings | HiddenSettings,
    classes: int,
    class_weights: Tensor | None,
) -> list[LearningCurvePoint]:
    """Fit a head with these settings to growing parts of each round's images, and evaluate it."""
    points = []
    for share in _CURVE_SHARES:
        images = right = total = 0
        for fitted, evaluated in rounds:
            order = torch.randperm(len(fitted), generator=torch.Generator().manual_seed(0))
            part = fitted.take(order[: max(1, int(share * len(fitted)))])
            logits: Tensor = settings.fit(part, classes, class_weights)(evaluated.views[0])
            images += len(part)
            right += int((logits.argmax(dim=1) == evaluated.labels).sum())
            total += len(evaluated)
        points.append(LearningCurvePoint(images // len(rounds), right, total))
    return points


def _try_settings(
    rounds: list[Round],
    classes: int,
    class_weights: Tensor | None,
    penalties: tuple[float, ...],
) -> Iterator[tuple[HeadSettings, Tensor]]:
    """Yield each way to fit a head, with the logits of all images evaluated."""
    starts: list[LinearHead | None] = [None] * len(rounds)
    best, worse = float("inf"), 0
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
        worse = worse + 1 if loss > best else 0
        best = min(best, loss)
        if worse >= _WORSE:
            break
    heads = [fit_linear(None, fitted, classes, class_weights) for fitted, _ in rounds]
    yield HeadSettings(None), _evaluate(heads, rounds)


def _evaluate(heads: list[LinearHead], rounds: list[Round]) -> Tensor:
    pairs = zip(heads, rounds, strict=True)
    return torch.cat([head(evaluated.views[0]) for head, (_, evaluated) in pairs])


def _is_better(candidate: ChosenHead, best: ChosenHead) -> bool:
    if candidate.settings == HeadSettings(None):
        return candidate.right > best.right
    losses = [float(F.cross_entropy(head.logits, head.labels)) for head in (candidate, best)]
    return losses[0] < losses[1]


def _folds(data: LabelledFeatures) -> Iterator[Round]:
    """Yield the fitted and the evaluated images of each fold; folds divide each class evenly."""
    folds = _FOLDS if len(data) < _MANY else _FOLDS_OF_MANY
    fold = torch.empty(len(data), dtype=torch.int64)
    order = data.labels.argsort(stable=True)
    fold[order] = torch.arange(len(data)) % folds
    for index in range(folds):
        evaluated = fold == index
        if evaluated.any() and not evaluated.all():
            yield data.take((~evaluated).nonzero()[:, 0]), data.take(evaluated.nonzero()[:, 0])


def _first_view(data: LabelledFeatures) -> LabelledFeatures:
    # One view suffices to compare penalties; images are numbered by digest, so the first are fair.
    return LabelledFeatures(data.views[:1, :_MAX_FITTED], data.labels[:_MAX_FITTED])
