"""What measuring a plan may take when the run has a time budget."""

import math
from dataclasses import dataclass

from onsight.step.timing import Timing
from onsight.training.images.fit_batch import SMALLEST

_OPTIONS = 4  # to be built and checked in a first round
_STEPS = 4  # of each
_COMPILE_SECONDS = 120.0  # that compiling a large network can take


@dataclass(frozen=True)
class Allowed:
    """seconds: for all of it; build_seconds: to make a network; step: of training, as timed."""

    seconds: float
    build_seconds: float
    step: Timing

    def images(self, batch_size: int, most_seconds: float) -> int:
        """The part of a batch to measure with, by halving it until a round of all options fits.

        most_seconds: those that measuring should take. 0 if there is no time even for 8 images.
        """
        images = batch_size
        while self._round_seconds(images) > min(self.seconds / 2, 2 * most_seconds):
            if images <= SMALLEST:
                return 0
            images = max(SMALLEST, images // 2)
        return images

    def worth_compiling(self, training_seconds: float) -> float:
        """The seconds of training that may justify compiling; none if trying it takes too long."""
        return training_seconds if self.seconds > _COMPILE_SECONDS else 0.0

    def _round_seconds(self, images: int) -> float:
        return _OPTIONS * (self.build_seconds + _STEPS * self.step.at(images))


UNLIMITED = Allowed(math.inf, 0.0, Timing({1: 0.0}))
