"""A blanked box in each image: cutout (DeVries and Taylor, arXiv:1708.04552)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onsight.data.augmentations.op import Numbers
from onsight.data.transforms import box

CUT_Y, CUT_X = 11, 12


@dataclass(frozen=True)
class Cutout:
    """Sets a box of normalised images (B, C, H, W) to 0, the mean; its sides are shares."""

    cutout: float = 0.0

    @property
    def columns(self) -> Sequence[int]:
        """The columns it needs; none when it is off."""
        return (CUT_Y, CUT_X) if self.cutout else ()

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """The images with their boxes blanked."""
        share = torch.full_like(numbers[CUT_Y], self.cutout)
        return images.masked_fill(
            box(numbers[CUT_Y], numbers[CUT_X], share, *images.shape[2:]), 0.0
        )
