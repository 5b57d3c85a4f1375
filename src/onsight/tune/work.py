"""What has to be computed for a dataset, and roughly how long it takes, by a table.

Which networks are trained, on how many images, at which size, for how many epochs and folds depends
on these nominal costs, never on a clock: the same command makes the same choices on a busy machine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from onsight.config import Config
from onsight.data import split
from onsight.data.index import TEST, VALIDATION
from onsight.data.sizes import find_common_size
from onsight.data.sources.source import Source, count_held_out
from onsight.deadline import read_budget
from onsight.features.heads import count_hidden_steps
from onsight.models.compact import stem_stride
from onsight.tune.plan import has_native_bf16

UNIT_SIDE = 64  # pixels a side, of the images that the table is about
MIN_TUNED_EPOCHS = 8  # with fewer, a fitted head on a frozen network is better
# Of the time, for a head's features: on a slower machine, images would be left out, which costs
# more than a smaller input (NOTEBOOK.md).
MAX_HEAD_SHARE = 0.7
HEAD_FIT_SECONDS = 1.5  # for the final head, and for that of each fold
_HEAD_FIT_IMAGE_SECONDS = 6e-6  # more, for each image, view and class
_HIDDEN_FITS = 2  # of a hidden layer: to compare it, and to refit it
_HIDDEN_STEP_SECONDS = 0.015
_MAX_HIDDEN_FRACTION = 0.1  # of the run's time, for all trainings together
_MAX_CURVE_FRACTION = 0.05  # of the run's time, for a learning curve of hidden layers
# A hidden layer is tried with at least this many images to fit, and to compare it on; with fewer,
# the comparison is noise.
MIN_HIDDEN_TRAINING, MIN_HIDDEN_VALIDATION = 500, 100
# Of the training images, for a head: fitted on fewer, it is hardly better than a network that is
# trained from scratch in the same time, or worse (NOTEBOOK.md).
LEAST_HEAD_FRACTION = 1 / 3
# Of up to this many training images, a pretrained network's head deserves most of a short time; of
# more, another network learns more from all of them than the head from more of them (NOTEBOOK.md).
FEW_IMAGES = 2_000

# Seconds that a run takes on two quiet cores, everything included.
_EFFORT_SECONDS = {"quick": 30.0, "normal": 180.0, "best": 1200.0}
_MANY_IMAGES, _MANY_SECONDS = 50_000, 240.0  # of `normal`, for more images


class Costs(NamedTuple):
    """Nominal microseconds per image of 64x64 pixels; the fixed ones are whatever the size."""

    fixed_forward: float  # forward pass of the pretrained network
    forward: float  # the rest of it, which grows with the number of pixels
    fine_tuning: float  # training step of the pretrained network
    fixed_step: float  # training step of Sprint or Compact
    sprint: float  # training step of Sprint
    compact: float  # training step of Compact


# Rough values for two cores and for a small GPU: a factor of two changes few choices. Two cores
# that compute in bf16 take a third of the time for a forward pass, and as long for training, which
# stays in fp32.
_CPU_COSTS = Costs(
    fixed_forward=600, forward=1350, fine_tuning=6_500, fixed_step=100, sprint=150, compact=470
)
_BF16_CPU_COSTS = _CPU_COSTS._replace(fixed_forward=900, forward=500)
_ACCELERATOR_COSTS = Costs(
    fixed_forward=0, forward=30, fine_tuning=120, fixed_step=0, sprint=8, compact=15
)

# Nominal microseconds to decode an image of any size, and for every 64x64 pixels, with two cores.
_FIXED_DECODING, _DECODING = 300.0, 50.0
_MAX_DECODING_FRACTION = 0.35  # of all the time; with more images, only some are decoded
OTHER_SECONDS = 10.0  # for starting, planning and closing
_MAX_OTHER_FRACTION = 0.5  # of all the time
_LEAST_TRAINING_FRACTION = 0.1  # of a time that is too short for the rest
_MIN_TRAINING_SECONDS = 3.0  # for each training of a cross-validation


@dataclass(frozen=True)
class Work:
    """What has to be computed, as far as it is known before images are decoded."""

    images: int  # number of images
    training: int  # how many of them are trained on
    validation: int  # how many of them settings are compared on
    trainings: int  # how many networks are trained: one for each fold, and the final one
    views: int  # how many views of an image a head is fitted on
    classes: int
    # (height, width) of all sampled images if they are small and of one size.
    own_size: tuple[int, int] | None
    side: int  # of a square with as many pixels as the median image
    large_side: int  # a quarter of the images are at least as large as a square of this side
    run_seconds: float  # for everything
    seconds: float  # for training
    costs: Costs  # nominal costs on this kind of device

    @property
    def shown(self) -> int:
        """How many images a head is fitted on; all, if each fold leaves out others."""
        return self.images if self.trainings > 1 else self.training

    def head_seconds(self, size: tuple[int, int], fitted: int | None = None) -> float:
        """Return the time to compute the features of all images, and to fit heads.

        Args:
            size: (height, width) of the input.
            fitted: How many images and mirror images heads are fitted on; default: all images, in
                one view. The others are only evaluated.
        """
        fitted = self.shown if fitted is None else fitted
        images = fitted + self.images - self.shown
        features = _seconds(images, self.costs.forward, math.prod(size))
        features += images * self.costs.fixed_forward / 1e6
        return features + self.trainings * self._fit_seconds(fitted)

    def count_fitted(self, size: tuple[int, int], seconds: float) -> int:
        """Count the images and mirror images whose features, and heads fitted on them, fit in."""
        # Mirror images only come into play if every image has one.
        whole = self.views * self.shown
        if self.head_seconds(size, whole) <= seconds:
            return whole
        fixed = self.head_seconds(size, 0)
        each = (self.head_seconds(size, self.shown) - fixed) / self.shown
        return max(0, min(self.shown, int((seconds - fixed) / each)))

    def _fit_seconds(self, fitted: int) -> float:
        seconds = HEAD_FIT_SECONDS + fitted * self.classes * _HEAD_FIT_IMAGE_SECONDS
        images = min(fitted, self.shown)
        if images >= MIN_HIDDEN_TRAINING and self.validation >= MIN_HIDDEN_VALIDATION:
            hidden_seconds = expect_hidden_seconds(images, self.trainings, self.run_seconds)
            seconds += hidden_seconds if math.isfinite(hidden_seconds) else 0.0
        return seconds

    def tuned_seconds(self, size: tuple[int, int], epochs: int = MIN_TUNED_EPOCHS) -> float:
        """Return the time to fine-tune the pretrained network, in all trainings together."""
        images = epochs * self.training * self.trainings
        return _seconds(images, self.costs.fine_tuning, math.prod(size))

    def scratch_seconds(self, name: str, size: tuple[int, int], epochs: int) -> float:
        """Return the time to train Sprint or Compact, whose first layer shrinks large images."""
        cost = self.costs.sprint if name == "sprint" else self.costs.compact
        stride = stem_stride(*size) / stem_stride(UNIT_SIDE, UNIT_SIDE)
        images = epochs * self.training * self.trainings
        fixed_seconds = images * self.costs.fixed_step / 1e6
        return fixed_seconds + _seconds(images, cost, math.prod(size) / stride**2)


def expect_hidden_seconds(images: int, trainings: int, run_seconds: float) -> float:
    """Return about how long it takes to try and to refit a hidden layer on a fitted head's images.

    Infinity if that is much of the run's time: it gains 3 to 4 points on some images, and nothing
    on others (NOTEBOOK.md).

    Args:
        images: How many images it is fitted on, in each training.
        trainings: How many heads are fitted.
        run_seconds: The nominal time of the run.
    """
    seconds = _HIDDEN_FITS * count_hidden_steps(images) * _HIDDEN_STEP_SECONDS
    return seconds if trainings * seconds <= _MAX_HIDDEN_FRACTION * run_seconds else math.inf


def expect_curve_seconds(parts: Sequence[int], run_seconds: float) -> float:
    """Return about how long a learning curve of hidden layers takes; infinity if that is much.

    Args:
        parts: How many images each of them is fitted on.
        run_seconds: The nominal time of the run.
    """
    seconds = sum(map(count_hidden_steps, parts)) * _HIDDEN_STEP_SECONDS
    return seconds if seconds <= _MAX_CURVE_FRACTION * run_seconds else math.inf


def describe_work(source: Source, config: Config, device: torch.device) -> Work:
    """Describe what has to be computed on a kind of device, with the splits that there will be."""
    splits, held_out = source.index.splits, count_held_out(source)
    free = min(len(splits) - held_out, count_decodable(source, config))
    free = min(free, config.train_images or free)
    given_validation, given_test = (int((splits == part).sum()) for part in (VALIDATION, TEST))
    validation = 0 if given_validation else round(config.validation_fraction * free)
    test = 0 if given_test else round(config.test_fraction * free)
    whole_seconds = nominal_seconds(config, free + held_out)
    decoded_fraction = (free + held_out) / len(splits)
    folds = 1 if given_test else expect_folds(source, config, test, whole_seconds)
    return Work(
        images=free + held_out,
        training=max(1, free - validation - (test if folds == 1 else 0)),
        validation=given_validation or validation,
        trainings=folds + 1 if folds > 1 else 1,
        views=2 if config.flip else 1,
        classes=len(source.index.classes),
        own_size=find_common_size(source),
        side=measure_side(source),
        large_side=measure_side(source, 0.75),
        run_seconds=whole_seconds,
        seconds=training_seconds(whole_seconds, decoded_fraction * decoding_seconds(source)),
        costs=_choose_costs(device),
    )


def _choose_costs(device: torch.device) -> Costs:
    if device.type != "cpu":
        return _ACCELERATOR_COSTS
    return _BF16_CPU_COSTS if has_native_bf16() else _CPU_COSTS


def nominal_seconds(config: Config, images: int) -> float:
    """Return how long a run on so many images may take: its budget, or that of its effort."""
    if config.budget:
        return read_budget(config.budget)
    if config.effort == "normal" and images > _MANY_IMAGES:
        return _MANY_SECONDS
    return _EFFORT_SECONDS[config.effort]


def training_seconds(seconds: float, decoding_seconds: float = 0.0) -> float:
    """Return about how much of a run's time is left for training."""
    other_seconds = OTHER_SECONDS + decoding_seconds
    if other_seconds >= seconds:
        return _LEAST_TRAINING_FRACTION * seconds
    return seconds - min(other_seconds, _MAX_OTHER_FRACTION * seconds)


def affordable_folds(seconds: float) -> int:
    """Return how many folds a run has time for, at least 1."""
    trainings = int(training_seconds(seconds) / _MIN_TRAINING_SECONDS)
    return max(1, trainings - 1)  # one training is that of the kept model


def count_decodable(source: Source, config: Config) -> int:
    """Count the images to train on that there is time to decode; with a budget, a clock decides.

    Images that are held out come first. Even if they take all the time, some others are decoded.
    """
    images = len(source.index)
    each = decoding_seconds(source) / max(1, images)
    limit = _MAX_DECODING_FRACTION * nominal_seconds(config, images)
    affordable = int(limit / each) if each else images
    return max(1, affordable - count_held_out(source), affordable // 2)


def expect_folds(source: Source, config: Config, test: int, seconds: float) -> int:
    """Return how many folds there will be if no test set is given, as far as is known.

    Args:
        source: The images, before copies among them are known.
        test: How many images a test set would have.
        seconds: The time of the whole run.
    """
    if config.folds != "auto":
        return int(config.folds)
    is_enough = test >= split.ENOUGH_TEST_IMAGES or split.requests_test_part(config)
    if source.times is not None or is_enough:
        return 1
    fewest = int(np.bincount(source.index.labels).min())
    return max(1, min(split.USUAL_FOLDS, fewest, affordable_folds(seconds)))


def measure_side(source: Source, fraction: float = 0.5) -> int:
    """Return the side of a square with as many pixels as an image; 64 if unknown.

    Args:
        fraction: Of the images, those that are no larger; by default, it is the median image.
    """
    sides = [math.sqrt(height * width) for height, width in source.sizes]
    return round(float(np.quantile(sides, fraction))) if sides else UNIT_SIDE


def decoding_seconds(source: Source) -> float:
    """Return the time to decode all images, each of the average area."""
    if not source.is_encoded:
        return 0.0
    images, areas = len(source.index), [height * width for height, width in source.sizes]
    area = sum(areas) / len(areas) if areas else UNIT_SIDE**2
    return _seconds(images, _DECODING, area) + images * _FIXED_DECODING / 1e6


def _seconds(images: int, cost: float, pixels: float) -> float:
    return images * cost * pixels / UNIT_SIDE**2 / 1e6
