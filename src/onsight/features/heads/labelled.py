"""Features with labels: what heads are fitted on."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LabelledFeatures:
    """views: float (V, n, D), the features of each view of n images; labels: int64 (n,)."""

    views: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "LabelledFeatures":
        """Some of the images, with all their views."""
        return LabelledFeatures(self.views[:, rows], self.labels[rows])

    def joined(self, more: "LabelledFeatures") -> "LabelledFeatures":
        """These images and more; of the views that both have."""
        common = min(len(self.views), len(more.views))
        views = torch.cat([self.views[:common], more.views[:common]], dim=1)
        return LabelledFeatures(views, torch.cat([self.labels, more.labels]))
