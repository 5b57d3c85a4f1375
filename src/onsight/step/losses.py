"""Losses as modules, whose class weights move to the device with them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.choice import Choice

_UNBALANCED = 5.0  # times as many images: from there on, rare classes are neglected


class Loss(nn.Module):
    """The mean loss of logits (B, K) against labels (B,) or class probabilities (B, K)."""

    weights: Tensor | None

    def __init__(self, weights: Tensor | None = None, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("weights", weights)
        self.label_smoothing = label_smoothing

    def total_weight(self, targets: Tensor) -> Tensor | int:
        """Return what the mean divides by, so that means of parts can be combined."""
        if self.weights is None or targets.ndim == 2:
            return len(targets)
        return self.weights[targets].sum()


class CrossEntropy(Loss):
    """Cross-entropy with optional class weights and label smoothing."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the images."""
        return F.cross_entropy(
            logits, targets, weight=self.weights, label_smoothing=self.label_smoothing
        )


class MeanSquaredError(Loss):
    """Mean squared error between softmax probabilities and (smoothed) one-hot labels."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over images and classes."""
        classes = logits.shape[1]
        shares = targets if targets.ndim == 2 else F.one_hot(targets, classes).to(logits.dtype)
        shares = shares * (1 - self.label_smoothing) + self.label_smoothing / classes
        errors = (logits.softmax(dim=1) - shares).square()
        if self.weights is None:
            return errors.mean()
        if targets.ndim == 2:  # weighted as in torch's cross-entropy of probabilities
            return (errors.mean(dim=1) * (targets @ self.weights)).mean()
        weights = self.weights[targets]
        return (errors.mean(dim=1) * weights).sum() / weights.sum()


def choose_class_weights(asked: str, counts: Tensor) -> Choice[str]:
    """Choose "none" or "sqrt" by the numbers of training images (K,) of the classes."""
    if asked != "auto":
        return Choice(asked, "set by you")
    present = counts[counts > 0]
    ratio = (present.max() / present.min()).item() if len(present) else 1.0
    how = "sqrt" if ratio > _UNBALANCED else "none"
    times = f"{ratio:,.1f}" if ratio < 10 else f"{ratio:,.0f}"
    reason = f"the largest class has {times} times the training images of the smallest"
    return Choice(how, reason, ratio)


def class_weights(counts: Tensor, how: str) -> Tensor:
    """Return a weight for each class, float32 (K,), whose mean over all images is 1.

    Args:
        counts: Training images of each class (K,); a class without any gets 0.
        how: "balanced" divides by the counts, "sqrt" by their square roots; "none" gives all
            classes 1.
    """
    present = counts > 0
    power = {"none": 0.0, "sqrt": 0.5, "balanced": 1.0}[how]
    weights = torch.where(present, counts.clamp(min=1).double() ** -power, 0.0)
    return (weights * counts.sum() / (weights * counts).sum().clamp(min=1e-12)).float()


def make_loss(name: str, label_smoothing: float, weights: Tensor | None) -> Loss:
    """Return the loss of this name."""
    kinds = {"cross-entropy": CrossEntropy, "mse": MeanSquaredError}
    return kinds[name](weights, label_smoothing)
