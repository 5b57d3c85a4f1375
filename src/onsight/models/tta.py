"""Test-time augmentation: the mean probabilities of several views of each image."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from onsight.data.transforms import shift_and_flip
from onsight.errors import ConfigError

View = tuple[int, int, bool]  # pixels down, pixels right, mirrored; no shift is larger than 1

# The shifts are along one diagonal, as in Jordan, arXiv:2404.00498.
VIEWS: dict[str, Sequence[View]] = {
    "flip": [(0, 0, False), (0, 0, True)],
    "flip-shift": [(way, way, mirrored) for way in (0, -1, 1) for mirrored in (False, True)],
}


class TtaForward:
    """Maps uint8 images (B, H, W, C) to logits (B, K) of their views' mean probabilities.

    forward: uint8 (B, H, W, C) to logits (B, K); name: one of VIEWS. No image's result depends
    on the others. Raises ConfigError.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor], name: str) -> None:
        if name not in VIEWS:
            raise ConfigError(f"no views '{name}'. There are: one, {', '.join(VIEWS)}")
        self.forward = forward
        self.views = VIEWS[name]

    def __call__(self, images: Tensor) -> Tensor:
        """The logarithm of the mean probabilities; softmax gives the probabilities."""
        logs = [self.forward(_view(images, view)).log_softmax(dim=1) for view in self.views]
        return torch.stack(logs).logsumexp(dim=0) - math.log(len(logs))


def _view(images: Tensor, view: View) -> Tensor:
    count, device = len(images), images.device
    return shift_and_flip(images, *(torch.full((count,), one, device=device) for one in view))
