"""How fast this machine runs a backbone, without loading one, which alone takes seconds."""

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.step.timing import measure_seconds

_IMAGES, _REPEATS = 16, 3
# The whole of Lite0 at 96x96, the smallest that is tried, takes this many times a widening,
# narrowing pair of its early layers, and more on a busy machine (NOTEBOOK.md).
_WHOLE = 16.0


@torch.inference_mode()
def least_forward_seconds(threads: int) -> float:
    """About how many seconds the cheapest backbone takes at least for an image, on the CPU."""
    images = torch.full((_IMAGES, 16, 48, 48), 0.5).to(memory_format=torch.channels_last)
    wide, deep, narrow = (
        torch.full(shape, 0.01) for shape in ((96, 16, 1, 1), (96, 1, 3, 3), (24, 96, 1, 1))
    )

    def layers() -> Tensor:
        widened = F.conv2d(F.conv2d(images, wide), deep, stride=2, padding=1, groups=96)
        return F.conv2d(widened, narrow)

    layers()  # not timed: the first is slow
    took = [measure_seconds(layers, threads, images.device) for _ in range(_REPEATS)]
    return _WHOLE * min(took) / _IMAGES
