"""Out-of-distribution detection: an image's distance from the features seen in training.

B batch, D features, n training images.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

NEAREST = 5  # neighbours; the single nearest may be an odd training image


@dataclass(frozen=True)
class OutOfDistributionDetector:
    """The features that images are compared with, and the score above which an image is flagged."""

    bank: Tensor  # float16 (n, D), n >= 5, directions of training images' features
    threshold: float
    false_alarm_rate: float  # largest fraction flagged of images like the training images
    images: int  # number of held-out images that set the threshold

    def to(self, device: torch.device) -> "OutOfDistributionDetector":
        """Return this detector on a device."""
        return replace(self, bank=self.bank.to(device))


def score(features: Tensor, bank: Tensor) -> Tensor:
    """Return each image's distance from the training images, 0 to 2: float32 (B,).

    The cosine distance of its features (B, D) to the fifth nearest of the bank (n, D): Sun et al.,
    arXiv:2204.06507. Plain tensor operations, for exported graphs.
    """
    similarities = F.normalize(features.float(), dim=1) @ bank.float().T
    return 1 - similarities.topk(NEAREST, dim=1).values[:, -1]


def is_out_of_distribution(
    scores: NDArray[np.float32], detector: OutOfDistributionDetector
) -> NDArray[np.bool_]:
    """Mark the scores (n,) that are above the threshold, or not a number: bool (n,)."""
    return np.logical_not(scores <= detector.threshold)
