"""What computes predictions: a network in torch, or an exported one that needs no torch.

B pictures, C channels, D features, H height, K classes, W width.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from onsight.data.fit import PictureFormat
from onsight.data.pillow_pixels import Pixels


class Outputs(NamedTuple):
    """What a network says about a batch.

    probabilities: float32 (B, K); features: float32 (B, D), if they were asked for.
    """

    probabilities: NDArray[np.float32]
    features: NDArray[np.float32] | None = None


class Runner(Protocol):
    """A trained network that takes prepared pictures.

    format: what pictures are decoded and fitted to; at_once: how many it takes best.
    """

    classes: tuple[str, ...]
    format: PictureFormat
    at_once: int

    @property
    def facts(self) -> Mapping[str, object]:
        """What people should know about it, by name."""
        ...

    def run(self, pictures: Pixels, features: bool = False) -> Outputs:
        """The outputs for pictures uint8 (B, H, W, C). Raises ModelError if it has no features."""
        ...
