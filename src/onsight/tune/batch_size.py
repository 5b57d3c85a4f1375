"""Which batch size fits a time budget: enough steps matter more than large batches."""

import math
from dataclasses import dataclass

from onsight.choice import Choice
from onsight.config import Config
from onsight.step.fine_tuning import fine_tunes
from onsight.step.timing import Timing

SMALLEST = 8
_FEWEST_STEPS = 30  # in the whole training
_LEAST_TUNING_BATCH = 32
_STEPS_OF_EPOCH = 30  # with fewer, and two epochs, fine-tuning ends before it has begun


def usual_batch(config: Config, training: int) -> Choice[int]:
    """The batch size as asked, or the default; smaller for fine-tuning on few images."""
    if "batch_size" in config.model_fields_set:
        return Choice(config.batch_size, "set by you")
    size = config.batch_size
    if fine_tunes(config):
        while size > _LEAST_TUNING_BATCH and training < _STEPS_OF_EPOCH * size:
            size //= 2
    if size == config.batch_size:
        return Choice(size, "the default")
    return Choice(size, f"more steps: {training:,} training images are few to fine-tune with")


def fit_batch(config: Config, step: Timing, seconds: float, training: int) -> Choice[int]:
    """The batch size with which at least 30 steps fit into the seconds, or the smallest of 8.

    step: seconds of a training step; training: the number of images. A batch size that was asked
    for is kept.
    """
    kept = usual_batch(config, training)
    fitted = kept.value
    if "batch_size" not in config.model_fields_set:
        while fitted > SMALLEST and seconds < _FEWEST_STEPS * step.at(fitted):
            fitted = 1 << ((fitted - 1).bit_length() - 1)  # the next smaller power of two
    if fitted == kept.value:
        return kept
    before, after = (max(0.0, seconds / step.at(size)) for size in (kept.value, fitted))
    reason = f"about {after:.0f} steps fit into the budget; with {kept.value} only {before:.0f}"
    return Choice(fitted, reason, after)


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
