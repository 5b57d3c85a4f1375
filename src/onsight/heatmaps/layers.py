"""The layers of a network whose output still has rows and columns, found by a trial forward pass.

h, w: rows and columns of a map, which are fewer than the image's.
"""

import math
from dataclasses import dataclass, field

from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.trial_forward import trial_forward

_FEWEST = 7  # rows and columns: in smaller maps, each place has seen most of a small image
_MOST = 3  # maps


@dataclass
class SpatialLayers:
    """The layers whose maps (B, D, h, w) say where, the finest first.

    mixed: whether layers behind them mix all places, as those of a transformer do.
    """

    layers: list[nn.Module]
    mixed: bool


def spatial_layers(net: nn.Module, images: Tensor) -> SpatialLayers:
    """The last layer at each of the last three sizes of map with at least 7 rows and columns.

    Where no map is so large, the last at the largest. images: float (B, C, H, W), for the trial.
    Raises ModelError for a network without convolutions.
    """
    seen = _Seen()
    hooks = [
        module.register_forward_hook(seen.note) for module in net.modules() if module is not net
    ]
    try:
        trial_forward(net, images)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen.last:
        raise ModelError(
            f"{type(net).__name__} has no convolution whose output has rows and columns, so there "
            "is no telling where in an image it looks; compact and resnet18 have heat maps"
        )
    sizes = sorted(seen.last, key=math.prod, reverse=True)
    large = [size for size in sizes if min(size) >= _FEWEST] or sizes[:1]
    return SpatialLayers([seen.last[size] for size in large[-_MOST:]], seen.tokens)


@dataclass
class _Seen:
    """What came out of layers, in the order of the forward pass.

    last: by (h, w), the last layer that gave such a map.
    """

    last: dict[tuple[int, int], nn.Module] = field(default_factory=dict)
    tokens: bool = False

    def note(self, module: nn.Module, _: object, output: object) -> None:
        if not isinstance(output, Tensor):
            return
        if output.dim() == 4:
            size = output.shape[2], output.shape[3]
            # Queries of attention have four dimensions too, but not a convolution's size.
            if min(size) > 1 and (isinstance(module, nn.Conv2d) or size in self.last):
                self.last[size] = module
        elif output.dim() == 3 and self.last:
            self.tokens |= output.shape[1] >= min(map(math.prod, self.last))
