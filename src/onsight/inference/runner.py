"""What computes predictions: a network in torch, or an exported one that needs no torch.

B images, C channels, D features, H height, K classes, W width.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from onsight.data.fit import ImageFormat
from onsight.data.pillow_pixels import Pixels
from onsight.evaluation.results import Results
from onsight.report.console import headline
from onsight.words import listed


class Outputs(NamedTuple):
    """What a network says about a batch.

    probabilities: float32 (B, K); scores: float32 (B,), how unlike the images seen in training
    they are, if it can tell; features: float32 (B, D), if they were asked for.
    """

    probabilities: NDArray[np.float32]
    scores: NDArray[np.float32] | None = None
    features: NDArray[np.float32] | None = None

    def out_of_distribution(self, threshold: float | None) -> list[bool | None]:
        """Whether each image is unlike anything seen in training, None if that is not told."""
        if threshold is None or self.scores is None:
            return [None] * len(self.probabilities)
        return [not score <= threshold for score in self.scores.tolist()]  # NaN is like nothing


class Runner(Protocol):
    """A trained network that takes prepared images.

    format: what images are decoded and fitted to; at_once: how many it takes best;
    threshold: of the score above which an image is unlike anything seen in training, None if it
    cannot tell.
    """

    classes: tuple[str, ...]
    format: ImageFormat
    at_once: int
    threshold: float | None

    @property
    def facts(self) -> Mapping[str, object]:
        """What people should know about it, by name."""
        ...

    def run(self, images: Pixels, features: bool = False) -> Outputs:
        """The outputs for images uint8 (B, H, W, C). Raises ModelError if it has no features."""
        ...

    def spread(self) -> None:
        """Use all cores for small batches as well, though results then differ by rounding."""
        ...


def runner_facts(
    model: str,
    device: object,
    size: ImageFormat,
    classes: Sequence[str],
    results: Mapping[str, Any],
) -> dict[str, object]:
    """The network, its device and input, the classes, and how good it is."""
    colour = "grey" if size.channels == 1 else "colour"
    facts = {
        "model": model,
        "device": device,
        "input": f"{size.shown[0]}x{size.shown[1]}, {colour}",
        "classes": listed(classes),
    }
    known = "images" in results
    return facts | ({"result": headline(cast(Results, results))} if known else {})
