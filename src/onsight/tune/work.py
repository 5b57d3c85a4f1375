"""What has to be computed for a dataset, and roughly how long it takes, by a table.

Which networks are trained, at which image size and for how many folds depends on these nominal
costs, never on a clock: the same command makes the same choice on a busy machine.

budget_seconds is the whole budget of a run, and infinite without one.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from onsight.config import Config
from onsight.data import split
from onsight.data.index import TEST, VALIDATION
from onsight.data.sizes import find_common_size
from onsight.data.sources.source import Source, count_held_out
from onsight.models.compact import stem_stride

UNIT_SIDE = 64  # pixels a side, of the images that the table is about
MIN_TUNED_EPOCHS = 8  # with fewer, a fitted head on a frozen network is better
HEAD_FIT_SECONDS = 1.5  # for the final head, and for that of each fold
# For a head's hidden layer, which is fitted twice; only as a small part of the time, because it
# gains 3 to 4 points on some images, and nothing on others.
_HIDDEN_SECONDS, _MAX_HIDDEN_FRACTION = 12.0, 0.05
# Of the time, for a head's features: on a slower machine, images would be left out, which costs
# more than a smaller input (NOTEBOOK.md).
MAX_HEAD_SHARE = 0.7
# Of up to this many training images, a pretrained network's head deserves most of a short time; of
# more, another network learns more from all of them than the head from more of them (NOTEBOOK.md).
FEW_IMAGES = 2_000


class Costs(NamedTuple):
    """Nominal microseconds per image of 64x64 pixels, except for `fixed_forward`."""

    fixed_forward: float  # forward pass of the pretrained network, whatever the size
    forward: float  # the rest of it, which grows with the number of pixels
    fine_tuning: float  # training step of the pretrained network
    sprint: float  # training step of Sprint
    compact: float  # training step of Compact


# Rough values for two cores and for a small GPU: a factor of two changes few choices.
_CPU_COSTS = Costs(fixed_forward=600, forward=900, fine_tuning=6_000, sprint=250, compact=550)
_ACCELERATOR_COSTS = Costs(fixed_forward=0, forward=30, fine_tuning=120, sprint=8, compact=15)

# Nominal microseconds to decode an image of any size, and for every 64x64 pixels, with two cores.
_FIXED_DECODING, _DECODING = 300.0, 50.0
_OTHER_SECONDS = 10.0  # of a budget, for starting, planning and closing
_MAX_OTHER_FRACTION = 0.5  # of a budget
_MIN_TRAINING_SECONDS = 3.0  # for each training of a cross-validation


@dataclass(frozen=True)
class Work:
    """What has to be computed, as far as it is known before images are decoded."""

    images: int  # number of images
    training: int  # how many of them are trained on
    trainings: int  # how many networks are trained: one for each fold, and the final one
    views: int  # how many views of an image a head is fitted on
    # (height, width) of all sampled images if they are small and of one size.
    own_size: tuple[int, int] | None
    side: int  # of a square with as many pixels as the median image
    seconds: float  # for training; infinite without a budget
    costs: Costs  # nominal costs on this kind of device

    def head_seconds(self, size: tuple[int, int], views: int = 1) -> float:
        """Return the time to compute the features of all images, and to fit the heads of folds."""
        images = views * self.images
        features = _seconds(images, self.costs.forward, math.prod(size))
        features += images * self.costs.fixed_forward / 1e6
        return features + (self.trainings - 1) * HEAD_FIT_SECONDS

    def hidden_seconds(self) -> float:
        """Return the time to fit a head's hidden layer; 0 if that would be much of all time."""
        is_small = self.seconds * _MAX_HIDDEN_FRACTION >= _HIDDEN_SECONDS
        return _HIDDEN_SECONDS if is_small else 0.0

    def tuned_seconds(self, size: tuple[int, int], epochs: int = MIN_TUNED_EPOCHS) -> float:
        """Return the time to fine-tune the pretrained network, in all trainings together."""
        images = epochs * self.training * self.trainings
        return _seconds(images, self.costs.fine_tuning, math.prod(size))

    def scratch_seconds(self, name: str, size: tuple[int, int], epochs: int) -> float:
        """Return the time to train Sprint or Compact, whose first layer shrinks large images."""
        cost = self.costs.sprint if name == "sprint" else self.costs.compact
        stride = stem_stride(*size) / stem_stride(UNIT_SIDE, UNIT_SIDE)
        images = epochs * self.training * self.trainings
        return _seconds(images, cost, math.prod(size) / stride**2)


def describe_work(
    source: Source, config: Config, device: torch.device, budget_seconds: float
) -> Work:
    """Describe what has to be computed on a kind of device, with the splits that there will be."""
    splits, held_out = source.index.splits, count_held_out(source)
    free = len(splits) - held_out
    if config.train_images:
        free = min(free, config.train_images)
    given_validation, given_test = (int((splits == part).sum()) for part in (VALIDATION, TEST))
    validation = 0 if given_validation else round(config.validation_fraction * free)
    test = 0 if given_test else round(config.test_fraction * free)
    folds = 1 if given_test else expect_folds(source, config, test, budget_seconds)
    return Work(
        images=free + held_out,
        training=max(1, free - validation - (test if folds == 1 else 0)),
        trainings=folds + 1 if folds > 1 else 1,
        views=2 if config.flip else 1,
        own_size=find_common_size(source),
        side=measure_side(source),
        seconds=training_seconds(budget_seconds, _decoding_seconds(source)),
        costs=_CPU_COSTS if device.type == "cpu" else _ACCELERATOR_COSTS,
    )


def training_seconds(budget_seconds: float, decoding_seconds: float = 0.0) -> float:
    """Return about how much of a budget is left for training."""
    if math.isinf(budget_seconds):
        return math.inf
    other_seconds = _OTHER_SECONDS + decoding_seconds
    return budget_seconds - min(other_seconds, _MAX_OTHER_FRACTION * budget_seconds)


def affordable_folds(budget_seconds: float) -> int:
    """Return how many folds a budget has time for, at least 1."""
    if math.isinf(budget_seconds):
        return split.USUAL_FOLDS
    trainings = int(training_seconds(budget_seconds) / _MIN_TRAINING_SECONDS)
    return max(1, trainings - 1)  # one training is that of the kept model


def expect_folds(source: Source, config: Config, test: int, budget_seconds: float) -> int:
    """Return how many folds there will be if no test set is given, as far as is known.

    Args:
        source: The images, before copies among them are known.
        test: How many images a test set would have.
    """
    if config.folds != "auto":
        return int(config.folds)
    is_enough = test >= split.ENOUGH_TEST_IMAGES or split.requests_test_part(config)
    if source.times is not None or is_enough:
        return 1
    fewest = int(np.bincount(source.index.labels).min())
    return max(1, min(split.USUAL_FOLDS, fewest, affordable_folds(budget_seconds)))


def measure_side(source: Source, fraction: float = 0.5) -> int:
    """Return the side of a square with as many pixels as an image; 64 if unknown.

    Args:
        fraction: Of the images, those that are no larger; by default, it is the median image.
    """
    sides = [math.sqrt(height * width) for height, width in source.sizes]
    return round(float(np.quantile(sides, fraction))) if sides else UNIT_SIDE


def _decoding_seconds(source: Source) -> float:
    if not source.is_encoded:
        return 0.0
    images = len(source.index)
    return _seconds(images, _DECODING, measure_side(source) ** 2) + images * _FIXED_DECODING / 1e6


def _seconds(images: int, cost: float, pixels: float) -> float:
    return images * cost * pixels / UNIT_SIDE**2 / 1e6
