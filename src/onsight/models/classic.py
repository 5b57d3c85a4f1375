"""Textbook networks: small, without normalization, for images that are not too small to pool.

All map float (B, C, H, W) to logits (B, K), without a softmax, because the loss expects logits.

B batch, C channels, H height, W width, K classes.
"""

import math

import torch
from torch import Tensor, nn

from onsight.errors import ModelError

_MAX_SIDE = 1024


class _Textbook(nn.Module):
    """Convolutions, then linear layers on all of their outputs."""

    features: nn.Sequential
    classifier: nn.Sequential

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        logits: Tensor = self.classifier(self.features(images))
        return logits


class LeNet(_Textbook):
    """5x5 convolutions of 6 and 16 channels with max pooling, then linear layers 120, 84 and K.

    Based on LeNet-5 (LeCun et al., 1998), with the ReLU and max pooling of today's textbooks.

    Args:
        shape: (C, H, W), at least 16x16 pixels. The textbook size is 32x32.

    Raises:
        ModelError: If images are too small.
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
    """5x5 convolutions of 32, 64 and 128 channels with ReLU and max pooling, then linear 512 and K.

    Args:
        shape: (C, H, W), at least 36x36 pixels. The textbook size is 50x50.

    Raises:
        ModelError: If images are too small.
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
    """Padded 5x5 convolutions of 32, 32 and 64 channels with max pooling, then linear 64 and K.

    As in the textbook, pooling is the only nonlinearity.

    Args:
        shape: (C, H, W), at least 8x8 pixels. The textbook size is 32x32.

    Raises:
        ModelError: If images are too small.
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
    """One linear layer from all values of an image.

    Args:
        shape: Any (C, H, W).
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def flattened_size(name: str, features: nn.Module, shape: tuple[int, int, int]) -> int:
    """Return the number of values of an image (C, H, W) after convolutions.

    Raises:
        ModelError: If the image is too small, with the smallest size.
    """
    channels, height, width = shape
    size = _find_size(features, shape)
    if size is None:
        sides = range(1, _MAX_SIDE)
        side = next(side for side in sides if _find_size(features, (channels, side, side)))
        raise ModelError(
            f"'{name}' needs images of at least {side}x{side} pixels, "
            f"these are {height}x{width}. Choose a larger --image-size or --model compact."
        )
    return size


@torch.no_grad()
def _find_size(features: nn.Module, shape: tuple[int, int, int]) -> int | None:
    # A real forward pass, because torch's meta device takes long to import.
    image = torch.zeros(1, *shape)
    try:
        output: Tensor = features(image)
    except RuntimeError:  # torch rejects a map smaller than the kernel
        return None
    return output.numel() or None
