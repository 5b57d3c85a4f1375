"""Out-of-distribution detection by the distance of an image's features from training images.

B batch, D features, n training images.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

NEAREST = 5  # rank of the neighbour whose distance counts; the nearest may be an outlier itself


@dataclass(frozen=True)
class OutOfDistributionDetector:
    """Flags images whose features are far from those of training images."""

    bank: Tensor  # normalised features of at least 5 training images, float16 (n, D)
    threshold: float  # score above which an image is flagged
    # Maximum proportion of images like the training images that are flagged.
    false_alarm_rate: float
    images: int  # held-out images that the threshold was set on

    def to(self, device: torch.device) -> "OutOfDistributionDetector":
        """Copy the detector to a device."""
        return replace(self, bank=self.bank.to(device))


def score(features: Tensor, bank: Tensor) -> Tensor:
    """Return the cosine distance of images to their fifth nearest training image.

    Sun et al., arXiv:2204.06507. Uses plain tensor operations only, for exported graphs.

    Args:
        features: Features of the images, (B, D).
        bank: Normalised features of training images, (n, D).

    Returns:
        Distances from 0 to 2, float32 (B,).
    """
    similarities = F.normalize(features.float(), dim=1) @ bank.float().T
    return 1 - similarities.topk(NEAREST, dim=1).values[:, -1]


def is_out_of_distribution(
    scores: NDArray[np.float32], detector: OutOfDistributionDetector
) -> NDArray[np.bool_]:
    """Return flags (n,) that are True for scores (n,) above the threshold or NaN."""
    return np.logical_not(scores <= detector.threshold)
