"""Losses as modules, so that their own tensors move to the device with them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        """The mean over pictures and classes, a scalar."""
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


def balanced_weights(counts: Tensor) -> Tensor:
    """n / (K n_class) for each class, 0 for a class without pictures. counts: (K,)."""
    present = counts > 0
    weights = counts.sum() / (present.sum() * counts.clamp(min=1))
    return torch.where(present, weights, 0.0).float()


def make_loss(name: str, label_smoothing: float, weights: Tensor | None) -> Loss:
    """The loss that a config names."""
    kinds = {"cross-entropy": CrossEntropy, "mse": MeanSquaredError}
    return kinds[name](weights, label_smoothing)
