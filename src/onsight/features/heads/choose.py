"""Which head fits the features best: judged on validation images, or by folds if they are few."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.features.heads.class_means import fit_class_means
from onsight.features.heads.hidden import HiddenSettings
from onsight.features.heads.labelled import LabelledFeatures
from onsight.features.heads.linear import LinearHead, Standardization
from onsight.features.heads.logistic import fit_logistic

PENALTIES = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4)  # of the mean loss, strong to weak
COARSE = (0.3, 0.03, 3e-3)  # enough to compare backbones with

_FEW = 100  # validation images; fewer choose by luck
_FOLDS, _FOLDS_OF_MANY, _MANY = 5, 3, 100  # images
_MOST_JUDGED = 5000  # images that the penalty is chosen with
_ITERATIONS = 15  # while choosing; each penalty starts from the one before
_WORSE = 2  # weaker penalties in a row that made it worse

Round = tuple[LabelledFeatures, LabelledFeatures]  # what is fitted, what is judged


@dataclass(frozen=True)
class HeadSettings:
    """A way to fit a head. penalty: of the squared weights; None for nearest class mean."""

    penalty: float | None

    def __str__(self) -> str:
        if self.penalty is None:
            return "nearest class mean"
        return f"logistic regression (penalty {self.penalty:g})"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> LinearHead:
        """The head for plain features. class_weights: float (K,)."""
        return _fit(self, data, classes, class_weights)


@dataclass(frozen=True)
class ChosenHead:
    """settings: what did best; logits: (m, K) of the images judged, none of which it was
    fitted to; labels: (m,) theirs; how: how they were held out."""

    settings: HeadSettings | HiddenSettings
    logits: Tensor
    labels: Tensor
    how: str

    @property
    def right(self) -> int:
        """How many of the images judged were classified correctly."""
        return int((self.logits.argmax(dim=1) == self.labels).sum())


def choose_head(
    train: LabelledFeatures,
    validation: LabelledFeatures,
    classes: int,
    class_weights: Tensor | None = None,
    penalties: tuple[float, ...] = PENALTIES,
) -> ChosenHead:
    """Try penalties from strong to weak, and nearest class mean; the least held-out loss wins.

    Nearest class mean must be more accurate to win. With fewer than 100 validation images,
    training and validation images are judged together in five folds, or three of many.
    """
    rounds = held_out(train, validation)
    if len(validation) >= _FEW:
        how = "on validation images"
    else:
        how = f"by {len(rounds)}-fold cross-validation"
    labels = torch.cat([judged.labels for _, judged in rounds])
    best: ChosenHead | None = None
    for settings, logits in _path(rounds, classes, class_weights, penalties):
        tried = ChosenHead(settings, logits, labels, how)
        if best is None or _is_better(tried, best):
            best = tried
    assert best is not None
    return best


def held_out(train: LabelledFeatures, validation: LabelledFeatures) -> list[Round]:
    """Images to fit on, at most 5,000 in one view, and images that judge; each judges once."""
    rounds = [(train, validation)]
    if len(validation) < _FEW:
        rounds = list(_folds(train.joined(validation)))
    return [(_plain_sample(fitted), judged) for fitted, judged in rounds]


def _path(
    rounds: list[Round],
    classes: int,
    class_weights: Tensor | None,
    penalties: tuple[float, ...],
) -> Iterator[tuple[HeadSettings, Tensor]]:
    """Each way tried, with the logits of all images judged."""
    starts: list[LinearHead | None] = [None] * len(rounds)
    best, worse = float("inf"), 0
    labels = torch.cat([judged.labels for _, judged in rounds])
    for penalty in penalties:
        settings = HeadSettings(penalty)
        heads = [
            _fit(settings, fitted, classes, class_weights, start, _ITERATIONS)
            for (fitted, _), start in zip(rounds, starts, strict=True)
        ]
        starts = list(heads)
        logits = _judged(heads, rounds)
        yield settings, logits
        loss = float(F.cross_entropy(logits, labels))
        worse = worse + 1 if loss > best else 0
        best = min(best, loss)
        if worse >= _WORSE:
            break
    settings = HeadSettings(None)
    heads = [_fit(settings, fitted, classes, class_weights) for fitted, _ in rounds]
    yield settings, _judged(heads, rounds)


def _judged(heads: list[LinearHead], rounds: list[Round]) -> Tensor:
    pairs = zip(heads, rounds, strict=True)
    return torch.cat([head(judged.views[0]) for head, (_, judged) in pairs])


def _is_better(tried: ChosenHead, best: ChosenHead) -> bool:
    if tried.settings == HeadSettings(None):
        return tried.right > best.right
    losses = [float(F.cross_entropy(one.logits, one.labels)) for one in (tried, best)]
    return losses[0] < losses[1]


def _folds(data: LabelledFeatures) -> Iterator[Round]:
    """What is fitted and what is judged, fold by fold; each class is spread over the folds."""
    folds = _FOLDS if len(data) < _MANY else _FOLDS_OF_MANY
    fold = torch.empty(len(data), dtype=torch.int64)
    order = data.labels.argsort(stable=True)
    fold[order] = torch.arange(len(data)) % folds
    for number in range(folds):
        judged = fold == number
        if judged.any() and not judged.all():
            yield data.take((~judged).nonzero()[:, 0]), data.take(judged.nonzero()[:, 0])


def _plain_sample(data: LabelledFeatures) -> LabelledFeatures:
    # One view tells penalties apart; images are numbered by digest, so the first are fair.
    return LabelledFeatures(data.views[:1, :_MOST_JUDGED], data.labels[:_MOST_JUDGED])


def _fit(
    settings: HeadSettings,
    data: LabelledFeatures,
    classes: int,
    class_weights: Tensor | None,
    start: LinearHead | None = None,
    iterations: int = 100,
) -> LinearHead:
    count = len(data.views)
    flat = data.views.flatten(0, 1)
    labels = data.labels.repeat(count)
    scale = Standardization.of(flat)
    standard = scale.apply(flat)
    if settings.penalty is None:
        return scale.fold(fit_class_means(standard, labels, classes))
    weights = None if class_weights is None else class_weights[labels]
    weights = None if weights is None else weights / weights.mean()
    unfolded = None if start is None else _unfold(start, scale)
    penalty = settings.penalty
    fitted = fit_logistic(standard, labels, classes, penalty, weights, unfolded, iterations)
    return scale.fold(fitted)


def _unfold(head: LinearHead, scale: Standardization) -> LinearHead:
    return LinearHead(head.weight * scale.std, head.bias + head.weight @ scale.mean)
