"""Nearest class mean: the head that works with an image or two of each class."""

import torch
from torch import Tensor

from onsight.features.heads.linear import LinearHead


def fit_class_means(features: Tensor, labels: Tensor, classes: int) -> LinearHead:
    """The head whose largest logit names the class with the nearest mean.

    features: float (n, D), standardised; labels: int64 (n,). Logits are minus half the squared
    distance in units of the mean squared distance of an image from its own class's mean, so that
    probabilities are of a sensible size. A class without images is never nearest.
    """
    counts = torch.bincount(labels, minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    means = sums / counts.clamp(min=1).unsqueeze(1)
    spread = (features - means[labels]).square().sum(dim=1).mean().clamp(min=1e-6)
    unit = spread / features.shape[1] ** 0.5  # distances of D features differ by this much
    bias = torch.where(counts > 0, -means.square().sum(dim=1) / (2 * unit), -torch.inf)
    return LinearHead(means / unit, torch.nan_to_num(bias, neginf=-1e4))
