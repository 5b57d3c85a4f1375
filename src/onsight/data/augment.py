"""Augmentation of training batches: drawn from (seed, epoch, picture), applied on the device."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from onsight.data import transforms
from onsight.data.loader import Batch
from onsight.data.normalization import Normalization
from onsight.randomness import uniform

_LOG_RATIO = math.log(4 / 3)  # aspect of a random-resized crop, either way
_TRIES = 16  # Jöhnk's rejection accepts at least half of the time for alpha <= 1

# Columns of the numbers drawn for a picture; a new one takes a number that no other has.
FLIP, DOWN, RIGHT, AREA, RATIO, CROP_Y, CROP_X, ANGLE = range(8)
BRIGHTNESS, CONTRAST, SATURATION, CUT_Y, CUT_X, MIX_KIND, MIX_Y, MIX_X = range(8, 16)
_TRIED = range(16, 16 + 2 * _TRIES)

Numbers = dict[int, Tensor]  # what was drawn by column: float32 (B,)


@dataclass(frozen=True)
class Augmentation:
    """What is done to training pictures, and how strongly; see the config's fields.

    input_size: (height, width) that warped pictures come out at; None keeps theirs.
    """

    flip: bool = False
    translate: float = 0.0
    crop_area: float = 1.0
    rotate_degrees: float = 0.0
    jitter: float = 0.0
    cutout: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    input_size: tuple[int, int] | None = None

    @property
    def mixes(self) -> bool:
        """Whether pictures are mixed, so that targets become shares of classes."""
        return self.mixup > 0 or self.cutmix > 0

    @property
    def warps(self) -> bool:
        """Whether pixels are resampled rather than moved whole."""
        return self.crop_area < 1 or self.rotate_degrees > 0

    @property
    def columns(self) -> list[int]:
        """The numbers that a picture needs."""
        columns = [FLIP, DOWN, RIGHT] if self.flip or self.translate or self.warps else []
        columns += [AREA, RATIO, CROP_Y, CROP_X, ANGLE] if self.warps else []
        columns += [BRIGHTNESS, CONTRAST, SATURATION] if self.jitter else []
        columns += [CUT_Y, CUT_X] if self.cutout else []
        return columns + ([MIX_KIND, MIX_Y, MIX_X, *_TRIED] if self.mixes else [])

    def draw(self, seed: int, epoch: int, ids: Tensor) -> Numbers:
        """The numbers in [0, 1) that each picture needs, by column."""
        columns = self.columns
        if not columns:
            return {}
        drawn = uniform(seed, epoch, ids, columns)
        return dict(zip(columns, drawn.unbind(1), strict=True))

    def apply(
        self, batch: Batch, numbers: Numbers, normalization: Normalization, classes: int
    ) -> tuple[Tensor, Tensor]:
        """The model's input (B, C, H, W) and targets: labels (B,), or shares (B, K) if mixed.

        When it mixes, the batch's last picture is there only as the partner of the one before.
        """
        images = self._move(batch.images, numbers)
        if self.jitter > 0:
            images = transforms.jitter_colour(
                images.float(),
                *(
                    1 + self.jitter * (2 * numbers[n] - 1)
                    for n in (BRIGHTNESS, CONTRAST, SATURATION)
                ),
            )
        inputs = normalization.apply(images)
        if self.cutout > 0:
            share = torch.full_like(numbers[CUT_Y], self.cutout)
            holes = transforms.box(numbers[CUT_Y], numbers[CUT_X], share, *inputs.shape[2:])
            inputs = inputs.masked_fill(holes, 0.0)
        if not self.mixes:
            return inputs, batch.labels
        return self._mix(inputs, batch.labels, numbers, classes)

    def _move(self, images: Tensor, numbers: Numbers) -> Tensor:
        if self.warps:
            return self._warp(images.float(), numbers)
        if not self.flip and self.translate == 0:
            return images
        if self.translate == 0:
            return transforms.mirror(images, self._mirrored(numbers))
        height, width = images.shape[1:3]
        down = _whole_shift(numbers[DOWN], self.translate, height)
        right = _whole_shift(numbers[RIGHT], self.translate, width)
        return transforms.shift_and_flip(images, down, right, self._mirrored(numbers))

    def _mirrored(self, numbers: Numbers) -> Tensor:
        return numbers[FLIP] < (0.5 if self.flip else 0.0)

    def _warp(self, images: Tensor, numbers: Numbers) -> Tensor:
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
            self._mirrored(numbers),
            self.input_size or (images.shape[1], images.shape[2]),
        )

    def _mix(
        self, inputs: Tensor, labels: Tensor, numbers: Numbers, classes: int
    ) -> tuple[Tensor, Tensor]:
        """Mix each picture with the next one."""
        partners, partner_labels = inputs[1:], labels[1:]
        inputs, labels = inputs[:-1], labels[:-1]
        numbers = {column: values[:-1] for column, values in numbers.items()}
        tries = torch.stack([numbers[column] for column in _TRIED], dim=1)
        blended_share = beta(tries, self.mixup or 1.0)
        box_share = (1 - beta(tries, self.cutmix or 1.0)).sqrt()
        boxes = transforms.box(numbers[MIX_Y], numbers[MIX_X], box_share, *inputs.shape[2:])
        pasted, pasted_share = transforms.paste(inputs, partners, boxes)
        blended = transforms.blend(inputs, partners, blended_share)
        if self.mixup > 0 and self.cutmix > 0:
            cut = numbers[MIX_KIND] < 0.5
        else:
            cut = torch.full_like(labels, self.cutmix > 0, dtype=torch.bool)
        mixed = torch.where(cut.view(-1, 1, 1, 1), pasted, blended)
        share = torch.where(cut, pasted_share, blended_share)
        return mixed, transforms.soft_targets(labels, partner_labels, share, classes)


def crop_windows(least_area: float, numbers: Numbers) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The windows of random-resized crops, each (B,): shares of height and width, centre y and x.

    Shares are of the picture's sides, centres counted from -1 to 1.
    """
    area = least_area + (1 - least_area) * numbers[AREA]
    spread = _LOG_RATIO if least_area < 1 else 0.0
    ratio = torch.exp(spread * (2 * numbers[RATIO] - 1))
    height = (area / ratio).sqrt().clamp(max=1)
    width = (area * ratio).sqrt().clamp(max=1)
    centre_y = (1 - height) * (2 * numbers[CROP_Y] - 1)
    centre_x = (1 - width) * (2 * numbers[CROP_X] - 1)
    return height, width, centre_y, centre_x


def beta(numbers: Tensor, alpha: float) -> Tensor:
    """Beta(alpha, alpha) variates (B,) from uniform numbers (B, 2 n), alpha at most 1.

    Jöhnk's rejection (Metrika 8, 1964): the first of n tries that is accepted.
    """
    first, second = (numbers.double() + 1e-9).pow(1 / alpha).chunk(2, dim=1)
    total = first + second
    accepted = (total <= 1) & (total > 0)
    chosen = accepted.int().argmax(dim=1, keepdim=True)
    return (first / total.clamp(min=1e-300)).gather(1, chosen).squeeze(1).float()


def _whole_shift(numbers: Tensor, share: float, side: int) -> Tensor:
    """Whole pixels from -limit to limit, the limit rounded from a share of the side."""
    limit = min(round(share * side), side - 1)
    return (numbers * (2 * limit + 1)).floor().long() - limit
