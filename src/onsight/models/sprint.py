"""A net for short trainings: three wide convolutions behind a first layer that is not trained.

Shapes: B batch, C channels, H height, W width, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.compact import LEAST_SIDE, stem_stride
from onsight.models.cosine_patches import cosine_patches

_FILTERS = 16


class Sprint(nn.Module):
    """Fixed patterns in both signs, then dense 3x3 convolutions of 32, 64 and 128 channels.

    shape is (C, H, W), at least 8x8. 2.6 million multiply-adds for 1x28x28.
    Maps float (B, C, H, W) to logits (B, K). Raises ModelError.
    """

    patterns: Tensor

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) < LEAST_SIDE:
            raise ModelError(
                f"'sprint' needs images of at least {LEAST_SIDE}x{LEAST_SIDE} pixels, "
                f"these are {height}x{width}. Choose a larger --image-size."
            )
        self.stride = stem_stride(height, width)
        patterns = cosine_patches(channels, self.stride + 2, _FILTERS // 2)
        self.register_buffer("patterns", patterns)
        self.stage1 = _convolution(_FILTERS, 32)
        self.stage2 = _convolution(32, 64)
        self.stage3 = _convolution(64, 128)
        self.head = nn.Linear(2 * 128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W)."""
        maps = F.conv2d(images, self.patterns, stride=self.stride, padding=1)
        maps = self.stage1(F.relu(F.max_pool2d(maps, 2)))
        for stage in (self.stage2, self.stage3):
            maps = stage(F.max_pool2d(maps, 2))
        pooled = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))], dim=1)
        logits: Tensor = self.head(pooled)
        return logits


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    # As He et al. (2015); torch's own start is for layers without batch norm.
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
