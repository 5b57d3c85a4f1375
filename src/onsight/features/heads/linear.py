"""A linear classifier of features; what every kind of head becomes in the end."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearHead:
    """logits = features @ weight.T + bias. weight: (K, D); bias: (K,)."""

    weight: Tensor
    bias: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (n, K) of features (n, D)."""
        return torch.addmm(self.bias, features, self.weight.T)


@dataclass(frozen=True)
class Standardization:
    """The mean and deviation (D,) of each feature over the training images."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, features: Tensor) -> "Standardization":
        """Measured on features (n, D); a feature that never varies keeps its scale."""
        std, mean = torch.std_mean(features, dim=0, correction=0)
        return cls(mean, torch.where(std > 1e-6, std, torch.ones_like(std)))

    def apply(self, features: Tensor) -> Tensor:
        """Features (n, D) with mean 0 and deviation 1."""
        return (features - self.mean) / self.std

    def fold(self, head: LinearHead) -> LinearHead:
        """The head for plain features that equals a head for standardised ones."""
        weight = head.weight / self.std
        return LinearHead(weight, head.bias - weight @ self.mean)
