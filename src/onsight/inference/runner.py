"""The interface of a network that a Predictor runs, in torch or exported.

B images, C channels, D features, H height, K classes, W width.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from onsight.data.fit import ImageFormat
from onsight.data.pixels import Pixels
from onsight.evaluation.results import Accuracy, Results
from onsight.report.console import headline
from onsight.text import joined

NOT_FINITE = "the model's output is not a number"


class Outputs(NamedTuple):
    """The outputs of a network for a batch."""

    probabilities: NDArray[np.float32]  # (B, K)
    scores: NDArray[np.float32] | None = None  # (B,), out-of-distribution; None without detector
    features: NDArray[np.float32] | None = None  # (B, D), if requested

    @property
    def are_finite(self) -> list[bool]:
        """Whether the outputs for each image can be used."""
        scores = () if self.scores is None else (self.scores,)
        return list(np.isfinite(np.column_stack([self.probabilities, *scores])).all(axis=1))

    def out_of_distribution(self, threshold: float | None) -> list[bool | None]:
        """Compare the scores with the threshold: one flag per image, None without a detector."""
        if threshold is None or self.scores is None:
            return [None] * len(self.probabilities)
        return [not score <= threshold for score in self.scores.tolist()]  # NaN counts as True


class Runner(Protocol):
    """A trained network that classifies decoded images."""

    classes: tuple[str, ...]
    format: ImageFormat  # the size and channels that images are converted to
    batch_size: int  # how many images it computes most efficiently at once
    threshold: float | None  # out-of-distribution scores above it are flagged; None: no detector

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts about the model for a person to read, by name."""

    def run(self, images: Pixels, features: bool = False) -> Outputs:
        """Compute images uint8 (B, H, W, C). Raises ModelError if features are not available."""

    def use_all_cores(self) -> None:
        """Use all cores for small batches too, at the price of different rounding errors."""


def model_facts(
    runner: Runner, model: str, device: object, results: Mapping[str, Any]
) -> dict[str, object]:
    """Return the facts of a Runner; results: of its run's evaluation, if there was one."""
    size = runner.format
    colour = "grey" if size.channels == 1 else "colour"
    facts = {
        "model": model,
        "device": device,
        "input": f"{size.model_size[0]}x{size.model_size[1]}, {colour}",
        "classes": joined(runner.classes),
    }
    if {"images", *Accuracy.__annotations__} <= results.keys():
        facts["result"] = headline(cast(Results, results))
    return facts
