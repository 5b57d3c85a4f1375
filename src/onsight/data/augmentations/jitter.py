"""Random brightness, contrast and saturation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onsight.data.augmentations.op import Numbers
from onsight.randomness import constant

BRIGHTNESS, CONTRAST, SATURATION = range(8, 11)
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Jitter:
    """Scales each of the three by a factor from 1 - jitter to 1 + jitter; images (B, H, W, C)."""

    jitter: float = 0.0

    @property
    def columns(self) -> Sequence[int]:
        """The columns it needs; none when it is off."""
        return (BRIGHTNESS, CONTRAST, SATURATION) if self.jitter else ()

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """The changed images, float (B, H, W, C), 0 to 255."""
        factors = (1 + self.jitter * (2 * numbers[column] - 1) for column in self.columns)
        return jitter_colour(images.float(), *factors)


def jitter_colour(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor
) -> Tensor:
    """Scale brightness, then contrast about the mean, then saturation by factors (B,).

    images: float (B, H, W, C), 0 to 255.
    """
    images = images * brightness.view(-1, 1, 1, 1)
    grey = _luma(images)
    mean = grey.mean(dim=(1, 2, 3), keepdim=True)
    images = torch.lerp(mean.expand_as(images), images, contrast.view(-1, 1, 1, 1))
    if images.shape[3] == 3:
        grey = _luma(images).expand_as(images)
        images = torch.lerp(grey, images, saturation.view(-1, 1, 1, 1))
    return images.clamp(0, 255)


def _luma(images: Tensor) -> Tensor:
    if images.shape[3] == 1:
        return images
    weights = constant(_LUMA, images.dtype, images.device)
    return (images * weights).sum(dim=3, keepdim=True)
