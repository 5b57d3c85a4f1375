"""Textbook nets: small, without normalization, for any image that survives their pooling.

Shapes: B batch, C channels, H height, W width, K classes. All map float (B, C, H, W)
to logits (B, K); none ends in a softmax, because the loss takes logits.
"""

import math

import torch
from torch import Tensor, nn

from onsight.errors import ModelError

_LARGEST_SIDE_TRIED = 1024


class _Textbook(nn.Module):
    """Convolutions, then linear layers on all of their output."""

    features: nn.Sequential
    classifier: nn.Sequential

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class LeNet(_Textbook):
    """Convolutions 6 and 16 of 5x5, max pooling, then linear 120, 84 and K, with ReLU between.

    shape is (C, H, W), at least 16x16; the textbook size is 32x32. Based on LeNet-5 (LeCun et
    al., 1998), with ReLU and max pooling as is usual today. Raises ModelError.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flattened_size("lenet", self.features, shape), 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, classes),
        )


class Conv3(_Textbook):
    """Convolutions 32, 64 and 128 of 5x5, each with ReLU and max pooling, then linear 512 and K.

    shape is (C, H, W), at least 36x36; the textbook size is 50x50. Raises ModelError.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], 32, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flattened_size("conv3", self.features, shape), 512),
            nn.ReLU(),
            nn.Linear(512, classes),
        )


class Quick(_Textbook):
    """Padded convolutions 32, 32 and 64 of 5x5 with max pooling, then linear 64 and K.

    As in the textbook, there is no activation besides the pooling. shape is (C, H, W), at least
    8x8; the textbook size is 32x32. Raises ModelError.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(shape[0], 32, 5, padding=2),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 5, padding=2),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(flattened_size("quick", self.features, shape), 64),
            nn.Linear(64, classes),
        )


class Linear(nn.Sequential):
    """One linear layer from all values of an image to K; shape is any (C, H, W)."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def flattened_size(name: str, features: nn.Module, shape: tuple[int, int, int]) -> int:
    """How many values of an image (C, H, W) are left after the convolutions.

    Raises ModelError, which names the smallest size, if none are left.
    """
    channels, height, width = shape
    size = _size_after(features, shape)
    if size is None:
        least = _least_side(features, channels)
        raise ModelError(
            f"'{name}' needs images of at least {least}x{least} pixels, "
            f"these are {height}x{width}. Choose a larger --image-size or --model compact."
        )
    return size


@torch.no_grad()
def _size_after(features: nn.Module, shape: tuple[int, int, int]) -> int | None:
    # A real forward pass of a black image: the meta device would import half of torch.
    image = torch.zeros(1, *shape)
    try:
        output: Tensor = features(image)
    except RuntimeError:  # torch rejects a map smaller than the kernel
        return None
    return output.numel() or None


def _least_side(features: nn.Module, channels: int) -> int:
    sides = range(1, _LARGEST_SIDE_TRIED)
    return next(side for side in sides if _size_after(features, (channels, side, side)))
