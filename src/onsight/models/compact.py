"""A small net that is fast on a CPU, for images of about 28 to 128 pixels.

Shapes: B batch, C channels, H height, W width, K classes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError

LEAST_SIDE = 8
_STEM_SIDE = 48  # above this the stem has a larger stride, so that cost grows slowly


class Compact(nn.Module):
    """Dense 3x3 convolutions in three stages of width, 2 width and 4 width channels.

    shape is (C, H, W), at least 8x8. 5.7 million multiply-adds for 1x28x28 at width 32.
    Maps float (B, C, H, W) to logits (B, K). Raises ModelError.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int = 32) -> None:
        super().__init__()
        channels, height, wide = shape
        if min(height, wide) < LEAST_SIDE:
            raise ModelError(
                f"'compact' needs images of at least {LEAST_SIDE}x{LEAST_SIDE} pixels, "
                f"these are {height}x{wide}. Choose a larger --image-size."
            )
        stride = stem_stride(height, wide)
        stem = width if stride > 1 else width // 2  # a larger patch has more to distinguish
        self.stem = _stem(channels, stem, stride)
        self.stage1 = _convolution(stem, width)
        self.stage2 = _stage(width, 2 * width)
        self.stage3 = _stage(2 * width, 4 * width)
        self.head = nn.Linear(8 * width, classes)
        self._start()

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        maps = self.stage3(self.stage2(self.stage1(self.stem(images))))
        pooled = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)
        logits: Tensor = self.head(pooled)
        return logits

    def _start(self) -> None:
        """Kaiming initialisation (He et al. 2015); each residual block starts as the identity."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        for module in self.modules():
            if isinstance(module, _Residual):
                nn.init.zeros_(module.last_norm.weight)


class _Residual(nn.Module):
    """Two convolutions, half as wide in between, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _convolution(width, width // 2)
        self.last = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(width)

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(maps + self.last_norm(self.last(self.first(maps))))


def stem_stride(height: int, width: int) -> int:
    """The stride of the first convolution: 1 up to a side of 48 pixels, doubled with each doubling.

    The side is that of a square of equal area; no stride leaves a map too small to pool.
    """
    side, least, stride = math.sqrt(height * width), min(height, width), 1
    while side / stride > _STEM_SIDE and least // (2 * stride) >= LEAST_SIDE:
        stride *= 2
    return stride


def _stem(channels: int, width: int, stride: int) -> nn.Sequential:
    # One strided convolution is six times as fast at 128 pixels as pooling full-size maps
    # repeatedly. Pooling comes first, so that norm and ReLU work on a quarter of the map.
    return nn.Sequential(
        nn.Conv2d(channels, width, stride + 2, stride=stride, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.MaxPool2d(2), _convolution(inputs, outputs), _Residual(outputs))
