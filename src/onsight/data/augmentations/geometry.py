"""Flips, shifts, random-resized crops and rotations, applied in a single resampling."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onsight.data import transforms
from onsight.data.augmentations.op import Numbers

FLIP, DOWN, RIGHT, AREA, RATIO, CROP_Y, CROP_X, ANGLE = range(8)
_LOG_RATIO = math.log(4 / 3)  # the widest aspect ratio of a random-resized crop, and its inverse


@dataclass(frozen=True)
class Geometry:
    """Moves pixels; images uint8 or float (B, H, W, C).

    input_size: (height, width) of cropped or rotated images; None keeps their size.
    """

    flip: bool = False
    translate: float = 0.0
    crop_area: float = 1.0
    rotate_degrees: float = 0.0
    input_size: tuple[int, int] | None = None

    @property
    def columns(self) -> Sequence[int]:
        """The columns it needs; none when it is off."""
        if self._resamples:
            return range(8)
        return (FLIP, DOWN, RIGHT) if self.flip or self.translate else ()

    @property
    def _resamples(self) -> bool:
        """Whether pixels are interpolated rather than moved whole."""
        return self.crop_area < 1 or self.rotate_degrees > 0

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """The moved images: float (B, *input_size, C) if cropped or rotated, else as before."""
        mirrored = numbers[FLIP] < (0.5 if self.flip else 0.0)
        if self._resamples:
            return self._warp(images.float(), mirrored, numbers)
        if self.translate == 0:
            return transforms.mirror(images, mirrored)
        height, width = images.shape[1:3]
        down = _whole_shift(numbers[DOWN], self.translate, height)
        right = _whole_shift(numbers[RIGHT], self.translate, width)
        return transforms.shift_and_flip(images, down, right, mirrored)

    def _warp(self, images: Tensor, mirrored: Tensor, numbers: Numbers) -> Tensor:
        height, width, centre_y, centre_x = crop_windows(self.crop_area, numbers)
        down, right = (2 * self.translate * (2 * numbers[n] - 1) for n in (DOWN, RIGHT))
        radians = math.radians(self.rotate_degrees) * (2 * numbers[ANGLE] - 1)
        return transforms.warp(
            images,
            height,
            width,
            centre_y + down,
            centre_x + right,
            radians,
            mirrored,
            self.input_size or (images.shape[1], images.shape[2]),
        )


def crop_windows(least_area: float, numbers: Numbers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The windows of random-resized crops, each (B,): height, width, centre y and centre x.

    Heights and widths are shares of the image's; centres run from -1 to 1.
    """
    area = least_area + (1 - least_area) * numbers[AREA]
    spread = _LOG_RATIO if least_area < 1 else 0.0
    ratio = torch.exp(spread * (2 * numbers[RATIO] - 1))
    height = (area / ratio).sqrt().clamp(max=1)
    width = (area * ratio).sqrt().clamp(max=1)
    centre_y = (1 - height) * (2 * numbers[CROP_Y] - 1)
    centre_x = (1 - width) * (2 * numbers[CROP_X] - 1)
    return height, width, centre_y, centre_x


def _whole_shift(numbers: Tensor, share: float, side: int) -> Tensor:
    """Whole pixels from -limit to limit, where limit is a share of the side, rounded."""
    limit = min(round(share * side), side - 1)
    return (numbers * (2 * limit + 1)).floor().long() - limit
