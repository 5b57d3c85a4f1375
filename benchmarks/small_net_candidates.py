"""The nets that small_nets.py compares: variations on `compact`, and nets shaped as those of GPUs.

Shapes: B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onsight.models.compact import Compact, stem_stride
from onsight.models.sprint import Sprint

Make = Callable[[tuple[int, int, int], int], nn.Module]
_EPSILON = 1e-3  # added to the variance of a whitened direction, of pixels with deviation 1


@dataclass(frozen=True)
class Stem:
    """The first layer: patches of stride + 2 pixels, or of `kernel`; pooled by 2 afterwards or not.

    whiten: "no" for random trainable weights with batch norm; "trained" and "frozen" start from the
    principal directions of patches in both signs, without batch norm.
    """

    width: int
    stride: int = 2
    kernel: int = 0
    pool: bool = False
    whiten: str = "no"


@dataclass(frozen=True)
class Stage:
    """A pool by 2, convolutions of 3x3 with batch norm, and a residual bottleneck if asked.

    pool: "first", "inside" (behind the first convolution, before its norm, as in airbench), "none".
    """

    widths: tuple[int, ...]
    pool: str = "first"
    residual: bool = False


class SmallNet(nn.Module):
    """A stem, stages and a linear layer on the pooled map. shape is (C, H, W).

    head: "mean+max" or "max". Maps float (B, C, H, W) to logits (B, K).
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        stem: Stem,
        stages: tuple[Stage, ...],
        activation: type[nn.Module] = nn.ReLU,
        head: str = "mean+max",
    ) -> None:
        super().__init__()
        self.plan = stem
        stride = stem.stride * stem_stride(*shape[1:])  # larger pictures end at the same maps
        self.first = _first(shape[0], stem, stride)
        norm = nn.BatchNorm2d(stem.width) if stem.whiten == "no" else nn.Identity()
        self.stem = nn.Sequential(
            nn.MaxPool2d(2) if stem.pool else nn.Identity(), norm, activation()
        )
        inputs, made = stem.width, []
        for stage in stages:
            made += _layers(inputs, stage, activation)
            inputs = stage.widths[-1]
        self.body = nn.Sequential(*made)
        self.both = head == "mean+max"
        self.head = nn.Linear((2 if self.both else 1) * inputs, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of pictures (B, C, H, W)."""
        maps = self.body(self.stem(self.first(images)))
        pooled = maps.amax(dim=(2, 3))
        if self.both:
            pooled = torch.cat([maps.mean(dim=(2, 3)), pooled], dim=1)
        logits: Tensor = self.head(pooled)
        return logits

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Set the first layer from the patches of pictures (n, C, H, W), unless it is random."""
        if self.plan.whiten == "no":
            return
        weight = self.first.weight
        directions = principal_directions(images, self.first, len(weight) // 2)
        weight.copy_(torch.cat([directions, -directions]))
        weight.requires_grad_(self.plan.whiten == "trained")


def principal_directions(images: Tensor, layer: nn.Conv2d, count: int) -> Tensor:
    """The first principal directions of a layer's patches, scaled to responses of deviation 1.

    Returns (count, C, k, k).
    """
    patches = F.unfold(images, layer.kernel_size, stride=layer.stride)
    patches = patches.transpose(1, 2).flatten(0, 1)
    variances, vectors = torch.linalg.eigh(torch.cov(patches.T))
    scaled = vectors.flip(1) / (variances.flip(0) + _EPSILON).sqrt()
    return scaled.T[:count].reshape(count, *layer.weight.shape[1:])


class _Residual(nn.Module):
    """Compact's bottleneck: two convolutions, half as wide in between, added to their input."""

    def __init__(self, width: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_convolution(width, width // 2, activation),
            nn.Conv2d(width // 2, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        nn.init.zeros_(self.layers[-1].weight)  # starts as the identity
        self.activation = activation()

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of the same shape."""
        out: Tensor = self.activation(maps + self.layers(maps))
        return out


def _first(channels: int, stem: Stem, stride: int) -> nn.Conv2d:
    kernel = stem.kernel or stride + 2
    layer = nn.Conv2d(channels, stem.width, kernel, stride, (kernel - stride) // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def _layers(inputs: int, stage: Stage, activation: type[nn.Module]) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.MaxPool2d(2)] if stage.pool == "first" else []
    for number, width in enumerate(stage.widths):
        convolution, norm, active = _convolution(inputs, width, activation)
        pooled = [nn.MaxPool2d(2)] if stage.pool == "inside" and number == 0 else []
        layers += [convolution, *pooled, norm, active]
        inputs = width
    return [*layers, _Residual(inputs, activation)] if stage.residual else layers


def _convolution(inputs: int, outputs: int, activation: type[nn.Module]) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return [layer, nn.BatchNorm2d(outputs), activation()]


# Compact's second and third stage.
_TAIL = (Stage((64,), residual=True), Stage((128,), residual=True))

CANDIDATES: dict[str, Make] = {
    "compact": Compact,
    "compact, width 24": partial(Compact, width=24),
    "compact, width 16": partial(Compact, width=16),
    # The first convolution as patches of stride 2, with no convolution at that resolution.
    "patches": partial(SmallNet, stem=Stem(32), stages=_TAIL),
    "patches, whitened, trained": partial(SmallNet, stem=Stem(32, whiten="trained"), stages=_TAIL),
    "patches, whitened, frozen": partial(SmallNet, stem=Stem(32, whiten="frozen"), stages=_TAIL),
    # Compact with a whitened first layer; nothing is computed backwards through it.
    "compact, whitened, frozen": partial(
        SmallNet,
        stem=Stem(16, stride=1, pool=True, whiten="frozen"),
        stages=(Stage((32,), pool="none"), *_TAIL),
    ),
    # Few wide layers, without residual blocks.
    "plain 64-128": partial(
        SmallNet, stem=Stem(32, whiten="frozen"), stages=(Stage((64,)), Stage((128,)))
    ),
    "plain 64-64-128-128": partial(
        SmallNet, stem=Stem(32, whiten="frozen"), stages=(Stage((64, 64)), Stage((128, 128)))
    ),
    "plain 32-64-128": partial(
        SmallNet,
        stem=Stem(16, stride=1, pool=True, whiten="frozen"),
        stages=(Stage((32,), pool="none"), Stage((64,)), Stage((128,))),
    ),
    "plain 32-64-128, random": partial(
        SmallNet,
        stem=Stem(16, stride=1, pool=True),
        stages=(Stage((32,), pool="none"), Stage((64,)), Stage((128,))),
    ),
    # The same with cosines in place of the directions of the pictures at hand.
    "sprint": Sprint,
    # Patches of stride 4 with many filters, then 3x3 convolutions on small maps only.
    "stride 4, 64": partial(
        SmallNet,
        stem=Stem(64, stride=4, whiten="frozen"),
        stages=(Stage((64,), pool="none"), Stage((128,), residual=True)),
    ),
    # Airbench's shape (arXiv:2404.00498), 1/2 to 1/4 as wide: 2x2 whitening, GELU, pool inside.
    "airbench, small": partial(
        SmallNet,
        stem=Stem(8, stride=1, kernel=2, whiten="frozen"),
        stages=tuple(Stage((width, width), pool="inside") for width in (32, 64, 64)),
        activation=nn.GELU,
        head="max",
    ),
}
