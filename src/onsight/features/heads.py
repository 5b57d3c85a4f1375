"""Heads fitted to features: logistic regression, nearest class mean, and one hidden layer.

Features may be float16, and are converted to float32 in blocks of images, so that memory is hardly
more than that of the features. n images, V views of each, D features, K classes.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.models.head import HiddenHead

_BLOCK = 8192  # images that are converted together
_MAX_CONVERTED = 50_000_000  # numbers that are converted once for a whole fit: 200 MB
_TOLERANCE = 1e-5  # fitting stops once no gradient is larger

# Settings of the hidden layer, tuned on one data set (NOTEBOOK.md). Halving or doubling any of them
# changes little.
_UNITS = 512
_BATCH, _MIN_EPOCHS, _MIN_STEPS = 256, 20, 300
_RATE, _WEIGHT_DECAY = 2e-3, 1.0
_INPUT_DROPOUT, _DROPOUT = 0.25, 0.5


@dataclass(frozen=True)
class LabelledFeatures:
    """The features and labels that heads are fitted on."""

    views: Tensor  # features of each view of the images, float16 or float32 (V, n, D)
    labels: Tensor  # class numbers, int64 (n,)

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
    """A linear classifier of features: logits = features @ weight.T + bias."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)

    def __call__(self, features: Tensor) -> Tensor:
        """Return logits (n, K) of features (n, D)."""
        return torch.addmm(self.bias, features, self.weight.T)

    @classmethod
    def zeros(cls, classes: int, features: Tensor) -> "LinearHead":
        """Make a head of zeros for features (n, D)."""
        example = _widen(features[:0])
        return cls(example.new_zeros(classes, features.shape[1]), example.new_zeros(classes))


def compute_logits(head: Callable[[Tensor], Tensor], features: Tensor) -> Tensor:
    """Return the logits (n, K) of features (n, D), which may be float16."""
    return torch.cat([head(_widen(block)) for block in features.split(_BLOCK)])


@dataclass(frozen=True)
class Standardization:
    """The mean and standard deviation of each feature over the training images."""

    mean: Tensor  # (D,)
    std: Tensor  # (D,)

    @classmethod
    def of(cls, features: Tensor) -> "Standardization":
        """Measure features (n, D). A constant feature gets a deviation of 1."""
        count, blocks = max(1, len(features)), features.split(_BLOCK)
        mean = torch.stack([block.sum(dim=0, dtype=torch.float64) for block in blocks]).sum(0)
        mean /= count
        squares = [(block.double() - mean).square().sum(dim=0) for block in blocks]
        std = (torch.stack(squares).sum(0) / count).sqrt()
        std = torch.where(std > 1e-6, std, torch.ones_like(std))
        dtype = _widen(features[:0]).dtype
        return cls(mean.to(dtype), std.to(dtype))

    def apply(self, features: Tensor) -> Tensor:
        """Scale features (n, D) to mean 0 and deviation 1, in float32."""
        return (features - self.mean) / self.std

    def fold(self, head: LinearHead) -> LinearHead:
        """Convert a head for standardised features to an equal head for plain features."""
        weight = head.weight / self.std
        return LinearHead(weight, head.bias - weight @ self.mean)

    def unfold(self, head: LinearHead) -> LinearHead:
        """Convert a head for plain features to an equal head for standardised features."""
        return LinearHead(head.weight * self.std, head.bias + head.weight @ self.mean)


class StandardisedFeatures:
    """Features (n, D) scaled to mean 0 and deviation 1, in blocks of float32.

    Many features are converted anew each time they are read, which saves memory.

    Args:
        features: (n, D).
        scale: Their mean and deviation.
    """

    def __init__(self, features: Tensor, scale: Standardization) -> None:
        self.features, self.scale = features, scale
        self._converted: list[Tensor] | None = None
        if features.numel() <= _MAX_CONVERTED:
            self._converted = list(self._convert())

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._converted) if self._converted is not None else self._convert()

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the features of some images, (m, D)."""
        return self.scale.apply(self.features[rows])

    def _convert(self) -> Iterator[Tensor]:
        return (self.scale.apply(block) for block in self.features.split(_BLOCK))


@dataclass(frozen=True)
class HeadSettings:
    """The settings of a linear head."""

    # The factor of the squared weights in the loss. None for nearest class mean.
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
            class_weights: The weight of each class in the loss, float (K,).
        """
        return fit_linear(self.penalty, data, classes, class_weights)


@dataclass(frozen=True)
class HiddenSettings:
    """The settings of a head with a hidden layer, for classes that are not linearly separable."""

    seed: int  # seed of the initial weights and of the order of the images

    def __str__(self) -> str:
        return f"one hidden layer of {_UNITS} units"

    def fit(
        self, data: LabelledFeatures, classes: int, class_weights: Tensor | None = None
    ) -> HiddenHead:
        """Fit a head for plain features with AdamW.

        Each epoch uses one random view of each image. The result depends on the arguments and the
        seed alone.

        Args:
            class_weights: The weight of each class in the loss, float (K,).
        """
        flat = data.views.flatten(0, 1)
        scale = Standardization.of(flat)
        standard, count = StandardisedFeatures(flat, scale), len(data)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(self.seed)
            head = HiddenHead(flat.shape[1], _UNITS, classes).to(scale.mean.dtype)
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
        class_weights: The weight of each class in the loss, float (K,).
        start: The initial head of logistic regression, by default zeros.
    """
    flat = data.views.flatten(0, 1)
    labels = data.labels.repeat(len(data.views))
    scale = Standardization.of(flat)
    standard = StandardisedFeatures(flat, scale)
    if penalty is None:
        return scale.fold(fit_class_means(standard, labels, classes))
    weights = None if class_weights is None else class_weights[labels]
    weights = None if weights is None else weights / weights.mean()
    initial = scale.unfold(start) if start else LinearHead.zeros(classes, flat)
    return scale.fold(fit_logistic(standard, labels, initial, penalty, weights, iterations))


def fit_logistic(
    features: Iterable[Tensor],
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
        features: Blocks (m, D) of standardised features of the n images, in order.
        labels: Class numbers, int64 (n,).
        penalty: The factor of the squared weights.
        weights: The weight of each image, with mean 1, float (n,).
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
        total = penalty / 2 * weight.square().sum()
        total.backward()
        total, done = total.detach(), 0
        for block in features:
            rows = slice(done, done := done + len(block))
            logits = torch.addmm(bias, block, weight.T)
            losses = F.cross_entropy(logits, labels[rows], reduction="none")
            part = (losses if weights is None else losses * weights[rows]).sum() / len(labels)
            part.backward()
            total += part.detach()
        return total

    with torch.enable_grad():
        optimizer.step(loss)
    return LinearHead(weight.detach(), bias.detach())


def fit_class_means(features: Iterable[Tensor], labels: Tensor, classes: int) -> LinearHead:
    """Return a head that classifies by the nearest class mean.

    It needs no more than an image or two per class. Logits are minus half the squared distance to
    a class mean, relative to the mean squared distance of images from the mean of their own class,
    so that probabilities are of a sensible size. Classes without images are never predicted.

    Args:
        features: Blocks (m, D) of standardised features of the n images, in order.
        labels: Class numbers, int64 (n,).
    """
    counts, start = torch.bincount(labels, minlength=classes), 0
    sums, squares = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    dtype = torch.float32
    for block in features:
        of_class = F.one_hot(labels[start : start + len(block)], classes).to(block.dtype)
        sums = sums + (of_class.T @ block).double()
        squares += block.double().square().sum()
        start, dtype = start + len(block), block.dtype
    means = sums / counts.clamp(min=1).unsqueeze(1)
    spread = (squares - (counts * means.square().sum(dim=1)).sum()) / len(labels)
    unit = spread.clamp(min=1e-6) / sums.shape[1] ** 0.5  # scale of differences between distances
    bias = torch.where(counts > 0, -means.square().sum(dim=1) / (2 * unit), -torch.inf)
    return LinearHead((means / unit).to(dtype), torch.nan_to_num(bias, neginf=-1e4).to(dtype))


def count_hidden_steps(count: int) -> int:
    """Return the steps that a hidden layer is trained for on so many images."""
    return _count_epochs(count) * math.ceil(count / _BATCH)


def _count_epochs(count: int) -> int:
    return max(_MIN_EPOCHS, math.ceil(_MIN_STEPS / math.ceil(count / _BATCH)))


def _widen(features: Tensor) -> Tensor:
    return features.float() if features.dtype == torch.float16 else features


def _forward_with_dropout(head: HiddenHead, features: Tensor) -> Tensor:
    inputs = F.dropout(features, _INPUT_DROPOUT)
    logits: Tensor = head.last(F.dropout(F.gelu(head.first(inputs)), _DROPOUT))
    return logits
