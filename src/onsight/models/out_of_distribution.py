"""How unlike the images seen in training an image is, by its features.

B batch, D features, K classes, n training images.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

NEAREST = 5  # the distance to the very nearest may be that to an odd training image


@dataclass(frozen=True)
class OutOfDistributionDetector:
    """What a score is computed from, and above which it means: unlike anything seen in training.

    bank: float16 (n, D), n >= 5, directions of training images' features. share: at most so many
    new images like those of training are above the threshold too; images: how many held-out
    ones it was set on.
    """

    bank: Tensor
    threshold: float
    share: float
    images: int

    def to(self, device: torch.device) -> "OutOfDistributionDetector":
        """The same on a device."""
        return replace(self, bank=self.bank.to(device))


def score(features: Tensor, bank: Tensor) -> Tensor:
    """How unlike the training images each image is, 0 to 2: float32 (B,).

    The cosine distance of its features (B, D) to the fifth nearest of the bank (n, D): Sun et al.,
    arXiv:2204.06507. Plain tensor operations, for exported graphs.
    """
    similarities = F.normalize(features.float(), dim=1) @ bank.float().T
    return 1 - similarities.topk(NEAREST, dim=1).values[:, -1]


def is_out_of_distribution(
    scores: NDArray[np.float32], stored: OutOfDistributionDetector
) -> NDArray[np.bool_]:
    """Whether scores (n,) are above the threshold, or not a number: bool (n,)."""
    return np.logical_not(scores <= stored.threshold)
