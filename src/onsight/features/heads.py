"""Heads fitted to features: logistic regression, nearest class mean, and one hidden layer.

n images, V views of each, D features, K classes.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.models.head import HiddenHead

_TOLERANCE = 1e-5  # fitting stops once no gradient is larger

# Settings of the hidden layer, tuned on one data set (NOTEBOOK.md). Halving or doubling any of them
# changes little.
_UNITS = 512
_BATCH, _MIN_EPOCHS, _MIN_STEPS = 256, 20, 300
_RATE, _WEIGHT_DECAY = 2e-3, 1.0
_INPUT_DROPOUT, _DROPOUT = 0.25, 0.5


@dataclass(frozen=True)
class LabelledFeatures:
    """The features and labels that heads are fitted on.

    Attributes:
        views: Features of each view of the images, float (V, n, D).
        labels: Class numbers, int64 (n,).
    """

    views: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "LabelledFeatures":
        """Select images by row, with all their views."""
        return LabelledFeatures(self.views[:, rows], self.labels[rows])

    def join(self, other: "LabelledFeatures") -> "LabelledFeatures":
        """Concatenate the images of two sets, with the views that both have."""
        common = min(len(self.views), len(other.views))
        views = torch.cat([self.views[:common], other.views[:common]], dim=1)
        return LabelledFeatures(views, torch.cat([self.labels, other.labels]))


@dataclass(frozen=True)
class LinearHead:
    """A linear classifier of features: logits = features @ weight.T + bias.

    Attributes:
        weight: (K, D).
        bias: (K,).
    """

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Return logits (n, K) of features (n, D)."""
        return torch.addmm(self.bias, features, self.weight.T)

    @classmethod
    def zeros(cls, classes: int, features: Tensor) -> "LinearHead":
        """Make a head of zeros for features (n, D)."""
        return cls(features.new_zeros(classes, features.shape[1]), features.new_zeros(classes))


@dataclass(frozen=True)
class Standardization:
    """The mean and standard deviation of each feature over the training images.

    Attributes:
        mean: (D,).
        std: (D,).
    """

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Standardization":
        """Measure features (n, D). A constant feature gets a deviation of 1."""
        std, mean = torch.std_mean(features, dim=0, correction=0)
        return cls(mean, torch.where(std > 1e-6, std, torch.ones_like(std)))

    def apply(self, features: Tensor) -> Tensor:
        """Scale features (n, D) to mean 0 and deviation 1."""
        return (features - self.mean) / self.std

    def fold(self, head: LinearHead) -> LinearHead:
        """Convert a head for standardised features to an equal head for plain features."""
        weight = head.weight / self.std
        return LinearHead(weight, head.bias - weight @ self.mean)

    def unfold(self, head: LinearHead) -> LinearHead:
        """Convert a head for plain features to an equal head for standardised features."""
        return LinearHead(head.weight * self.std, head.bias + head.weight @ self.mean)


@dataclass(frozen=True)
class HeadSettings:
    """The settings of a linear head.

    Attributes:
        penalty: The factor of the squared weights in the loss. None for nearest class mean.
    """

    penalty: float | None

    def __str__(self) -> str:
        if self.penalty is None:
            return "nearest class mean"
        return f"logistic regression (penalty {self.penalty:g})"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> LinearHead:
        """Fit a head for plain features.

        Args:
            data: The images; all views are used.
            classes: The number of classes K.
            class_weights: The weight of each class in the loss, float (K,).
        """
        return fit_linear(self.penalty, data, classes, class_weights)


@dataclass(frozen=True)
class HiddenSettings:
    """The settings of a head with a hidden layer, for classes that are not linearly separable.

    Attributes:
        seed: The seed of the initial weights and of the order of the images.
    """

    seed: int

    def __str__(self) -> str:
        return f"one hidden layer of {_UNITS} units"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> HiddenHead:
        """Fit a head for plain features with AdamW.

        Each epoch uses one random view of each image. The result depends on the arguments and the
        seed alone.

        Args:
            data: The images.
            classes: The number of classes K.
            class_weights: The weight of each class in the loss, float (K,).
        """
        flat = data.views.flatten(0, 1)
        scale = Standardization.of(flat)
        standard, count = scale.apply(flat), len(data)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            head = HiddenHead(flat.shape[1], _UNITS, classes).to(flat.dtype)
            optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, weight_decay=_WEIGHT_DECAY)
            epochs, steps = _count_epochs(count), math.ceil(count / _BATCH)
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
    """Fit a linear head for plain features.

    Args:
        penalty: The factor of the squared weights in the loss. None for nearest class mean.
        data: The images; all views are used.
        classes: The number of classes K.
        class_weights: The weight of each class in the loss, float (K,).
        start: The initial head of logistic regression, by default zeros.
        iterations: The maximum number of iterations.
    """
    flat = data.views.flatten(0, 1)
    labels = data.labels.repeat(len(data.views))
    scale = Standardization.of(flat)
    standard = scale.apply(flat)
    if penalty is None:
        return scale.fold(fit_class_means(standard, labels, classes))
    weights = None if class_weights is None else class_weights[labels]
    weights = None if weights is None else weights / weights.mean()
    initial = scale.unfold(start) if start else LinearHead.zeros(classes, standard)
    return scale.fold(fit_logistic(standard, labels, initial, penalty, weights, iterations))


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    start: LinearHead,
    penalty: float,
    weights: Tensor | None = None,
    iterations: int = 100,
) -> LinearHead:
    """Minimise the mean cross-entropy plus penalty / 2 times the squared weights, with L-BFGS.

    The problem is convex, so the solution does not depend on the start. The bias is not penalised.
    scikit-learn's C is 1 / (n * penalty).

    Args:
        features: Standardised features, float (n, D).
        labels: Class numbers, int64 (n,).
        start: The initial head.
        penalty: The factor of the squared weights.
        weights: The weight of each image, with mean 1, float (n,).
        iterations: The maximum number of iterations.
    """
    weight, bias = start.weight.clone(), start.bias.clone()
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
        losses = F.cross_entropy(torch.addmm(bias, features, weight.T), labels, reduction="none")
        mean = (losses if weights is None else losses * weights).mean()
        total = mean + penalty / 2 * weight.square().sum()
        total.backward()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    return LinearHead(weight.detach(), bias.detach())


def fit_class_means(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    """Return a head that classifies by the nearest class mean.

    It needs no more than an image or two per class. Logits are minus half the squared distance to
    a class mean, relative to the mean squared distance of images from the mean of their own class,
    so that probabilities are of a sensible size. Classes without images are never predicted.

    Args:
        features: Standardised features, float (n, D).
        labels: Class numbers, int64 (n,).
        classes: The number of classes K.
    """
    counts = torch.bincount(labels, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    spread = (features - means[labels]).square().sum(dim=1).mean().clamp(min=1e-6)
    unit = spread / features.shape[1] ** 0.5  # scale of the differences between distances
    bias = torch.where(counts > 0, -means.square().sum(dim=1) / (2 * unit), -torch.inf)
    return LinearHead(means / unit, torch.nan_to_num(bias, neginf=-1e4))


def count_hidden_fit_operations(data: LabelledFeatures, classes: int) -> float:
    """Count the floating-point operations to fit a head with a hidden layer.

    Each of three passes takes two operations per weight and image.
    """
    return 6.0 * _count_epochs(len(data)) * len(data) * _UNITS * (data.views.shape[-1] + classes)


def _count_epochs(count: int) -> int:
    return max(_MIN_EPOCHS, math.ceil(_MIN_STEPS / math.ceil(count / _BATCH)))


def _forward_with_dropout(head: HiddenHead, features: Tensor) -> Tensor:
    inputs = F.dropout(features, _INPUT_DROPOUT)
    logits: Tensor = head.last(F.dropout(F.gelu(head.first(inputs)), _DROPOUT))
    return logits
