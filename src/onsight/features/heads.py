"""Heads fitted to features: logistic regression, nearest class mean, and one hidden layer.

n images, V views of each, D features, K classes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.models.head import HiddenHead

_TOLERANCE = 1e-5  # largest gradient at which fitting stops

# Found on one kind of images (NOTEBOOK.md); half or twice of each changes little.
_UNITS = 512
_BATCH, _MIN_EPOCHS, _MIN_STEPS = 256, 20, 300
_RATE, _WEIGHT_DECAY = 2e-3, 1.0
_INPUT_DROPOUT, _DROPOUT = 0.25, 0.5


@dataclass(frozen=True)
class LabelledFeatures:
    """The features and labels that heads are fitted on."""

    views: Tensor  # float (V, n, D)
    labels: Tensor  # int64 (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "LabelledFeatures":
        """Return some of the images, with all their views."""
        return LabelledFeatures(self.views[:, rows], self.labels[rows])

    def joined(self, more: "LabelledFeatures") -> "LabelledFeatures":
        """Return these images and more, with the views that both have."""
        common = min(len(self.views), len(more.views))
        views = torch.cat([self.views[:common], more.views[:common]], dim=1)
        return LabelledFeatures(views, torch.cat([self.labels, more.labels]))


@dataclass(frozen=True)
class LinearHead:
    """A linear classifier of features: logits = features @ weight.T + bias."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)

    def __call__(self, features: Tensor) -> Tensor:
        """Return logits (n, K) of features (n, D)."""
        return torch.addmm(self.bias, features, self.weight.T)


@dataclass(frozen=True)
class Standardization:
    """The mean and deviation of each feature over the training images."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    @classmethod
    def of(cls, features: Tensor) -> "Standardization":
        """Measure features (n, D); a feature that never varies keeps its scale."""
        std, mean = torch.std_mean(features, dim=0, correction=0)
        return cls(mean, torch.where(std > 1e-6, std, torch.ones_like(std)))

    def apply(self, features: Tensor) -> Tensor:
        """Return features (n, D) with mean 0 and deviation 1."""
        return (features - self.mean) / self.std

    def fold(self, head: LinearHead) -> LinearHead:
        """Return the head for plain features that equals a head for standardised ones."""
        weight = head.weight / self.std
        return LinearHead(weight, head.bias - weight @ self.mean)

    def unfold(self, head: LinearHead) -> LinearHead:
        """Return the head for standardised features that equals a head for plain ones."""
        return LinearHead(head.weight * self.std, head.bias + head.weight @ self.mean)


@dataclass(frozen=True)
class HeadSettings:
    """The settings for fitting a linear head."""

    penalty: float | None  # weight of the squared weights; None for nearest class mean

    def __str__(self) -> str:
        if self.penalty is None:
            return "nearest class mean"
        return f"logistic regression (penalty {self.penalty:g})"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> LinearHead:
        """Fit a head for plain features to all views. class_weights: float (K,)."""
        return fit_linear(self.penalty, data, classes, class_weights)


@dataclass(frozen=True)
class HiddenSettings:
    """The settings for fitting a head with a hidden layer, for classes that no plane separates."""

    seed: int  # seed of the initial weights and of the batches

    def __str__(self) -> str:
        return f"one hidden layer of {_UNITS} units"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> HiddenHead:
        """Fit a head for plain features, a function of the arguments. class_weights: float (K,).

        Trained by AdamW; an epoch uses one random view of each image.
        """
        flat = data.views.flatten(0, 1)
        scale = Standardization.of(flat)
        standard, count = scale.apply(flat), len(data)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            head = HiddenHead(flat.shape[1], _UNITS, classes).to(flat.dtype)
            optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY)
            epochs, steps = _epochs(count), math.ceil(count / _BATCH)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, _RATE, epochs=epochs, steps_per_epoch=steps
            )
            for _ in range(epochs):
                rows = torch.randint(len(data.views), (count,)) * count + torch.arange(count)
                for batch in rows[torch.randperm(count)].split(_BATCH):
                    labels = data.labels[batch % count]
                    logits = _forward_with_dropout(head, standard[batch])
                    optimizer.zero_grad()
                    F.cross_entropy(logits, labels, class_weights).backward()
                    optimizer.step()
                    schedule.step()
        folded = scale.fold(LinearHead(head.first.weight.detach(), head.first.bias.detach()))
        head.first.weight.data, head.first.bias.data = folded.weight, folded.bias
        return head.requires_grad_(False).eval()


def fit_linear(
    penalty: float | None,
    data: LabelledFeatures,
    classes: int,
    class_weights: Tensor | None,
    start: LinearHead | None = None,
    iterations: int = 100,
) -> LinearHead:
    """Fit a head for plain features to all views.

    penalty: None for nearest class mean; start: where logistic regression begins, by default at
    zero; iterations: the most.
    """
    flat = data.views.flatten(0, 1)
    labels = data.labels.repeat(len(data.views))
    scale = Standardization.of(flat)
    standard = scale.apply(flat)
    if penalty is None:
        return scale.fold(fit_class_means(standard, labels, classes))
    weights = None if class_weights is None else class_weights[labels]
    weights = None if weights is None else weights / weights.mean()
    unfolded = None if start is None else scale.unfold(start)
    fitted = fit_logistic(standard, labels, classes, penalty, weights, unfolded, iterations)
    return scale.fold(fitted)


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    classes: int,
    penalty: float,
    weights: Tensor | None = None,
    start: LinearHead | None = None,
    iterations: int = 100,
) -> LinearHead:
    """Minimise the mean cross-entropy plus penalty / 2 times the squared weights, by L-BFGS.

    The problem is convex, so the result does not depend on luck. features: float (n, D),
    standardised; labels: int64 (n,); weights: float (n,) of the images, their mean 1; start: where
    to begin, by default at zero; iterations: the most. The bias is not penalised; scikit-learn's C
    is 1 / (n * penalty).
    """
    shape = (classes, features.shape[1])
    weight = start.weight.clone() if start else features.new_zeros(shape)
    bias = start.bias.clone() if start else features.new_zeros(classes)
    weight.requires_grad_(), bias.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=iterations,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        each = F.cross_entropy(torch.addmm(bias, features, weight.T), labels, reduction="none")
        mean = (each if weights is None else each * weights).mean()
        total = mean + penalty / 2 * weight.square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    return LinearHead(weight.detach(), bias.detach())


def fit_class_means(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    """Return the head whose largest logit names the class with the nearest mean.

    It works with an image or two of each class. features: float (n, D), standardised; labels:
    int64 (n,). Logits are minus half the squared distance in units of the mean squared distance of
    an image from its own class's mean, so that probabilities are of a sensible size. A class
    without images is never nearest.
    """
    counts = torch.bincount(labels, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    spread = (features - means[labels]).square().sum(dim=1).mean().clamp(min=1e-6)
    unit = spread / features.shape[1] ** 0.5  # distances of D features differ by this much
    bias = torch.where(counts > 0, -means.square().sum(dim=1) / (2 * unit), -torch.inf)
    return LinearHead(means / unit, torch.nan_to_num(bias, neginf=-1e4))


def hidden_fit_operations(data: LabelledFeatures, classes: int) -> float:
    """Return the floating-point operations of fitting a head with a hidden layer.

    Three passes, of two operations for each weight.
    """
    return 6.0 * _epochs(len(data)) * len(data) * _UNITS * (data.views.shape[-1] + classes)


def _epochs(count: int) -> int:
    return max(_MIN_EPOCHS, math.ceil(_MIN_STEPS / math.ceil(count / _BATCH)))


def _forward_with_dropout(head: HiddenHead, features: Tensor) -> Tensor:
    inputs = F.dropout(features, _INPUT_DROPOUT)
    logits: Tensor = head.last(F.dropout(F.gelu(head.first(inputs)), _DROPOUT))
    return logits
