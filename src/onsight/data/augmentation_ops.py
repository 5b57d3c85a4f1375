"""Augmentation operations: geometry, colour jitter, cutout, mixup and cutmix.

Each is a frozen dataclass whose fields are settings of the config. Here their defaults switch it
off; config.py sets the defaults of a run, which flips and shifts images.

B batch, C channels, H height, W width, K classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.data import transforms
from onsight.randomness import constant
from onsight_explain.devices import has_float64

Numbers = dict[int, Tensor]  # random numbers in [0, 1) by column: float32 (B,)

# A random number is a function of (seed, epoch, image, column), so each use needs a column of its
# own, which must never change. A test pins the columns in use.
FLIP, DOWN, RIGHT, AREA, RATIO, CROP_Y, CROP_X, ANGLE = range(8)
BRIGHTNESS, CONTRAST, SATURATION = range(8, 11)
CUT_Y, CUT_X = 11, 12
MIX_KIND, MIX_Y, MIX_X = 13, 14, 15
TRIES = 16  # attempts of beta() per image; for alpha <= 1, it accepts at least half of them
_BETA = range(16, 16 + 2 * TRIES)
NEXT_FREE_COLUMN = 48  # of 64; raise it with each new use

_LOG_RATIO = math.log(4 / 3)  # aspect ratios of random resized crops are from 3:4 to 4:3
_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Geometry:
    """Flips, shifts, random resized crops and rotations, applied in a single resampling.

    Images are uint8 or float (B, H, W, C). Except for input_size, attributes are fields of the
    config.

    Attributes:
        input_size: The (height, width) after cropping or rotating; None keeps the size.
    """

    flip: bool = False
    translate: float = 0.0
    crop_area: float = 1.0
    rotate_degrees: float = 0.0
    input_size: tuple[int, int] | None = None

    @property
    def columns(self) -> Sequence[int]:
        """The columns of random numbers that it needs; none if it is off."""
        if self._resamples:
            return range(8)
        return (FLIP, DOWN, RIGHT) if self.flip or self.translate else ()

    @property
    def _resamples(self) -> bool:
        """Whether pixels are interpolated."""
        return self.crop_area < 1 or self.rotate_degrees > 0

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """Return the changed images; if they are cropped or rotated, float (B, *input_size, C)."""
        mirrored = numbers[FLIP] < (0.5 if self.flip else 0.0)
        if self._resamples:
            return self._warp(images.float(), mirrored, numbers)
        if self.translate == 0:
            return transforms.mirror(images, mirrored)
        height, width = images.shape[1:3]
        down = _scale_to_pixels(numbers[DOWN], self.translate, height)
        right = _scale_to_pixels(numbers[RIGHT], self.translate, width)
        return transforms.shift_and_flip(images, down, right, mirrored)

    def _warp(self, images: Tensor, mirrored: Tensor, numbers: Numbers) -> Tensor:
        height, width, centre_y, centre_x = crop_windows(self.crop_area, numbers)
        down, right = (2 * self.translate * (2 * numbers[column] - 1) for column in (DOWN, RIGHT))
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


def crop_windows(min_area: float, numbers: Numbers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the windows of random resized crops of at least a fraction of the image's area.

    They are heights and widths as fractions of the image's, then centres y and x from -1 to 1, each
    (B,).
    """
    area = min_area + (1 - min_area) * numbers[AREA]
    spread = _LOG_RATIO if min_area < 1 else 0.0
    ratio = torch.exp(spread * (2 * numbers[RATIO] - 1))
    height = (area / ratio).sqrt().clamp(max=1)
    width = (area * ratio).sqrt().clamp(max=1)
    centre_y = (1 - height) * (2 * numbers[CROP_Y] - 1)
    centre_x = (1 - width) * (2 * numbers[CROP_X] - 1)
    return height, width, centre_y, centre_x


@dataclass(frozen=True)
class Jitter:
    """Brightness, contrast and saturation, each scaled by a factor from 1 - jitter to 1 + jitter.

    Images are (B, H, W, C).
    """

    jitter: float = 0.0

    @property
    def columns(self) -> Sequence[int]:
        """The columns of random numbers that it needs; none if it is off."""
        return (BRIGHTNESS, CONTRAST, SATURATION) if self.jitter else ()

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """Return the changed images, float (B, H, W, C) from 0 to 255."""
        factors = (1 + self.jitter * (2 * numbers[column] - 1) for column in self.columns)
        return jitter_colour(images.float(), *factors)


def jitter_colour(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor
) -> Tensor:
    """Scale brightness, then contrast around the mean, then saturation, by factors (B,).

    images: float (B, H, W, C) from 0 to 255.
    """
    images = images * brightness.view(-1, 1, 1, 1)
    grey = _luma(images)
    mean = grey.mean(dim=(1, 2, 3), keepdim=True)
    images = torch.lerp(mean.expand_as(images), images, contrast.view(-1, 1, 1, 1))
    if images.shape[3] == 3:
        grey = _luma(images).expand_as(images)
        images = torch.lerp(grey, images, saturation.view(-1, 1, 1, 1))
    return images.clamp(0, 255)


@dataclass(frozen=True)
class Cutout:
    """Cutout, which sets a box of each image to the mean (DeVries and Taylor, arXiv:1708.04552).

    Images are normalised (B, C, H, W), so the mean is 0.

    Attributes:
        cutout: The side of the box, as a fraction of the image's side.
    """

    cutout: float = 0.0

    @property
    def columns(self) -> Sequence[int]:
        """The columns of random numbers that it needs; none if it is off."""
        return (CUT_Y, CUT_X) if self.cutout else ()

    def apply(self, images: Tensor, numbers: Numbers) -> Tensor:
        """Return the images with their boxes blanked."""
        share = torch.full_like(numbers[CUT_Y], self.cutout)
        boxes = transforms.box(numbers[CUT_Y], numbers[CUT_X], share, *images.shape[2:])
        return images.masked_fill(boxes, 0.0)


@dataclass(frozen=True)
class Mix:
    """Mixup, cutmix, or one of the two at random, of each image with the next one of its batch.

    Zhang et al., arXiv:1710.09412, and Yun et al., arXiv:1905.04899.

    Attributes:
        mixup: The alpha of the Beta distribution of the weight of an image.
        cutmix: The alpha of the Beta distribution of the area of an image that is kept.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def columns(self) -> Sequence[int]:
        """The columns of random numbers that it needs; none if it is off."""
        return (MIX_KIND, MIX_Y, MIX_X, *_BETA) if self.mixup or self.cutmix else ()

    def apply(
        self, inputs: Tensor, labels: Tensor, numbers: Numbers, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Return mixed images (B - 1, C, H, W) and targets (B - 1, K).

        inputs: normalised images (B, C, H, W), of which the last only serves as a partner; labels:
        int64 (B,).
        """
        partners, partner_labels = inputs[1:], labels[1:]
        inputs, labels = inputs[:-1], labels[:-1]
        numbers = {column: values[:-1] for column, values in numbers.items()}
        tries = torch.stack([numbers[column] for column in _BETA], dim=1)
        blended_share = beta(tries, self.mixup or 1.0)
        blended = torch.lerp(partners, inputs, blended_share.view(-1, 1, 1, 1))
        box_share = (1 - beta(tries, self.cutmix or 1.0)).sqrt()
        boxes = transforms.box(numbers[MIX_Y], numbers[MIX_X], box_share, *inputs.shape[2:])
        pasted = torch.where(boxes, partners, inputs)
        pasted_share = 1.0 - boxes.float().mean(dim=(1, 2, 3))
        cut = self._is_cut(numbers[MIX_KIND])
        mixed = torch.where(cut.view(-1, 1, 1, 1), pasted, blended)
        share = torch.where(cut, pasted_share, blended_share)
        return mixed, _soft_targets(labels, partner_labels, share, classes)

    def _is_cut(self, numbers: Tensor) -> Tensor:
        """Return flags (B,) that are True for images to cut rather than blend."""
        if self.mixup > 0 and self.cutmix > 0:
            return numbers < 0.5
        return torch.full_like(numbers, self.cutmix > 0, dtype=torch.bool)


def beta(numbers: Tensor, alpha: float) -> Tensor:
    """Return Beta(alpha, alpha) variates (B,), by Jöhnk's rejection sampling (Metrika 8, 1964).

    numbers: uniform random numbers for n attempts, (B, 2 n), of which the first that is accepted
    counts; alpha: at most 1.
    """
    values = numbers if has_float64(numbers.device) else numbers.cpu()
    first, second = (values.double() + 1e-9).pow(1 / alpha).chunk(2, dim=1)
    total = first + second
    accepted = (total <= 1) & (total > 0)
    chosen = accepted.int().argmax(dim=1, keepdim=True)
    share = (first / total.clamp(min=1e-300)).gather(1, chosen).squeeze(1).float()
    return share.to(numbers.device)


def _scale_to_pixels(numbers: Tensor, fraction: float, side: int) -> Tensor:
    """Scale random numbers to whole pixels, at most a fraction of the side in each direction."""
    limit = min(round(fraction * side), side - 1)
    return (numbers * (2 * limit + 1)).floor().long() - limit


def _luma(images: Tensor) -> Tensor:
    if images.shape[3] == 1:
        return images
    weights = constant(_LUMA, images.dtype, images.device)
    return (images * weights).sum(dim=3, keepdim=True)


def _soft_targets(labels: Tensor, partner_labels: Tensor, share: Tensor, classes: int) -> Tensor:
    """Return targets (B, K) with the weight `share` (B,) for an image's own label."""
    own = F.one_hot(labels, classes).float()
    other = F.one_hot(partner_labels, classes).float()
    return torch.lerp(other, own, share.unsqueeze(1))
