"""Losses as modules, so that their own tensors move to the device with them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.choice import Choice

_UNBALANCED = 5.0  # times the images: where rare classes begin to be left out


class Loss(nn.Module):
    """The mean loss of logits (B, K) against labels (B,) or class probabilities (B, K)."""

    weights: Tensor | None

    def __init__(self, weights: Tensor | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.label_smoothing = label_smoothing

    def total_weight(self, targets: Tensor) -> Tensor | int:
        """What the mean divides by, so that the means of parts can be combined."""
        if self.weights is None or targets.ndim == 2:
            return len(targets)
        return self.weights[targets].sum()


class CrossEntropy(Loss):
    """Cross-entropy, with class weights and label smoothing if any."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean loss, a scalar."""
        return F.cross_entropy(
            logits, targets, weight=self.weights, label_smoothing=self.label_smoothing
        )


class MeanSquaredError(Loss):
    """Mean squared error between softmax probabilities and (smoothed) one-hot labels."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean over images and classes, a scalar."""
        classes = logits.shape[1]
        shares = targets if targets.ndim == 2 else F.one_hot(targets, classes).to(logits.dtype)
        shares = shares * (1 - self.label_smoothing) + self.label_smoothing / classes
        errors = (logits.softmax(dim=1) - shares).square()
        if self.weights is None:
            return errors.mean()
        if targets.ndim == 2:  # as torch's cross-entropy does for probabilities
            return (errors.mean(dim=1) * (targets @ self.weights)).mean()
        weights = self.weights[targets]
        return (errors.mean(dim=1) * weights).sum() / weights.sum()


def choose_class_weights(asked: str, counts: Tensor) -> Choice[str]:
    """Which weights suit classes with these counts (K,) of training images: none or sqrt."""
    if asked != "auto":
        return Choice(asked, "set by you")
    present = counts[counts > 0]
    ratio = (present.max() / present.min()).item() if len(present) else 1.0
    how = "sqrt" if ratio > _UNBALANCED else "none"
    times = f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"
    reason = f"the largest class has {times} times the training images of the smallest"
    return Choice(how, reason, ratio)


def class_weights(counts: Tensor, how: str) -> Tensor:
    """A weight for each class, float32 (K,), whose mean over all images is 1.

    counts: (K,) training images, a class without any gets 0. how: balanced makes all classes
    count alike, sqrt goes half of the way (by the square root of the counts), none leaves all at 1.
    """
    present = counts > 0
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[how]
    weights = torch.where(present, counts.clamp(min=1).double() ** -power, 0.0)
    return (weights * counts.sum() / (weights * counts).sum().clamp(min=1e-12)).float()


def make_loss(name: str, label_smoothing: float, weights: Tensor | None) -> Loss:
    """The loss that a config names."""
    kinds = {"cross-entropy": CrossEntropy, "mse": MeanSquaredError}
    return kinds[name](weights, label_smoothing)
