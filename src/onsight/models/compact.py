"""Two small convolutional networks: Compact, fast on a CPU, and Sprint, for short training runs.

B batch, C channels, H height, W width, K classes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError

MIN_SIDE = 8

_STEM_SIDE = 48  # pixels a side; larger images get a larger stride, so that cost grows slowly
_FILTERS = 16  # filters in Sprint's fixed first layer

# Assumptions of cosine_patches about images.
_CORRELATION = 0.95  # correlation of neighbouring pixels, and of neighbouring channels
_EPSILON = 1e-3  # added variance, so that the finest patterns, mostly noise, are not amplified


class Compact(nn.Module):
    """Dense 3x3 convolutions in three stages of width, 2 width and 4 width channels.

    Maps float (B, C, H, W) to logits (B, K), for images of about 28 to 128 pixels. A 1x28x28 image
    takes 5.7 million multiply-adds at width 32.

    Args:
        shape: (C, H, W), at least 8x8 pixels.
        width: The channels of the first stage.

    Raises:
        ModelError: If images are too small.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, *, width: int = 32) -> None:
        super().__init__()
        _require_min_side("compact", shape)
        stride = stem_stride(*shape[1:])
        stem = width if stride > 1 else width // 2  # larger patches need more filters
        self.stem = _stem(shape[0], stem, stride)
        self.stage1 = _convolution(stem, width)
        self.stage2 = _stage(width, 2 * width)
        self.stage3 = _stage(2 * width, 4 * width)
        self.head = nn.Linear(8 * width, classes)
        self._initialise()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        maps = self.stage3(self.stage2(self.stage1(self.stem(images))))
        pooled = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)
        logits: Tensor = self.head(pooled)
        return logits

    def _initialise(self) -> None:
        """Initialise convolutions like He et al. (2015), and residual blocks as the identity."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                _initialise_convolution(module)
        for module in self.modules():
            if isinstance(module, _Residual):
                nn.init.zeros_(module.last_norm.weight)


class Sprint(nn.Module):
    """A fixed first layer of cosine patterns, then 3x3 convolutions of 32, 64 and 128 channels.

    Maps float (B, C, H, W) to logits (B, K). A 1x28x28 image takes 2.6 million multiply-adds.

    Args:
        shape: (C, H, W), at least 8x8 pixels.

    Raises:
        ModelError: If images are too small.
    """

    patterns: Tensor

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        _require_min_side("sprint", shape)
        self.stride = stem_stride(*shape[1:])
        patterns = cosine_patches(shape[0], self.stride + 2, _FILTERS // 2)
        self.register_buffer("patterns", patterns)
        self.stage1 = _initialised_convolution(_FILTERS, 32)
        self.stage2 = _initialised_convolution(32, 64)
        self.stage3 = _initialised_convolution(64, 128)
        self.head = nn.Linear(2 * 128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        maps = F.conv2d(images, self.patterns, stride=self.stride, padding=1)
        maps = self.stage1(F.relu(F.max_pool2d(maps, 2)))
        for stage in (self.stage2, self.stage3):
            maps = stage(F.max_pool2d(maps, 2))
        pooled = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)
        logits: Tensor = self.head(pooled)
        return logits


def stem_stride(height: int, width: int) -> int:
    """Return the stride of the first convolution: 1 up to a side of 48 pixels.

    For larger images, it is doubled until the map has that size, or is just large enough to pool.
    """
    side, shorter, stride = math.sqrt(height * width), min(height, width), 1
    while side / stride > _STEM_SIDE and shorter // (2 * stride) >= MIN_SIDE:
        stride *= 2
    return stride


def cosine_patches(channels: int, side: int, count: int) -> Tensor:
    """Make fixed filters for a first layer: JPEG's cosines, scaled to whiten image patches.

    Neighbouring pixels are alike, so the principal directions of patches are nearly cosines,
    whatever the images show (Ahmed, Natarajan and Rao, 1974). Responses of equal size let later
    layers learn from the first step on, and a fixed layer needs no backward pass.

    Args:
        channels: The channels C of images.
        side: The side of a patch in pixels.
        count: The number of patterns, at most C * side * side.

    Returns:
        The patterns with the largest variance, then their negatives, float32
        (2 * count, C, side, side). For normalised pixels, their responses have a standard
        deviation of 1.
    """
    colours, lines = _cosines(channels), _cosines(side)
    line_variances = _response_variances(lines)
    variances = _response_variances(colours)[:, None, None] * (
        line_variances[:, None] * line_variances
    )
    patterns = torch.einsum("ac,by,dx->abdcyx", colours, lines, lines).flatten(0, 2)
    order = variances.flatten().argsort(descending=True, stable=True)[:count]
    scale = (variances.flatten()[order] + _EPSILON).rsqrt()
    chosen = patterns[order] * scale[:, None, None, None]
    return torch.cat([chosen, -chosen]).float()


class _Residual(nn.Module):
    """Two convolutions with a bottleneck of half the width, added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = _convolution(width, width // 2)
        self.last = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(width)

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(maps + self.last_norm(self.last(self.first(maps))))


def _require_min_side(name: str, shape: tuple[int, int, int]) -> None:
    _, height, width = shape
    if min(height, width) < MIN_SIDE:
        raise ModelError(
            f"'{name}' needs images of at least {MIN_SIDE}x{MIN_SIDE} pixels, "
            f"these are {height}x{width}. Choose a larger --image-size."
        )


def _stem(channels: int, width: int, stride: int) -> nn.Sequential:
    # At 128 pixels, one strided convolution is six times as fast as pooling full-size maps
    # repeatedly. Pooling comes first, so that batch norm and ReLU compute a quarter of the values.
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


def _initialised_convolution(inputs: int, outputs: int) -> nn.Sequential:
    block = _convolution(inputs, outputs)
    _initialise_convolution(block[0])
    return block


def _initialise_convolution(layer: nn.Module) -> None:
    # torch's default initialisation suits layers without batch norm.
    assert isinstance(layer, nn.Conv2d)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.MaxPool2d(2), _convolution(inputs, outputs), _Residual(outputs))


def _cosines(size: int) -> Tensor:
    """Return the orthonormal cosine transform: float64 (frequency, position)."""
    positions = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi / size * positions[:, None] * (positions + 0.5))
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit


def _response_variances(rows: Tensor) -> Tensor:
    """Return the variance (n,) of the responses of rows (n, size) to correlated pixels."""
    positions = torch.arange(rows.shape[1], dtype=torch.float64)
    correlations = _CORRELATION ** (positions[:, None] - positions).abs()
    variances: Tensor = (rows @ correlations * rows).sum(dim=1)
    return variances
