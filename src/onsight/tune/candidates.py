"""Chooses the networks that `--model auto` trains, their sizes and shares of the time.

The choice depends on the images' number and size, the kind of device, the number of folds and the
budget, by a table of nominal costs. It never depends on a clock, so the same command makes the same
choice on a busy machine.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data import split
from onsight.data.dataset import find_common_size
from onsight.data.index import TEST, VALIDATION
from onsight.data.sources.source import Source, count_held_out
from onsight.models.compact import MIN_SIDE, stem_stride
from onsight.models.timm_nets import OFFLINE_MODEL, offline_models

AUTO = "auto"  # the model that stands for all candidates
HEAD, SCRATCH, TUNED = "head", "scratch", "tuned"  # a network from scratch has its own name

_UNIT_SIDE = 64  # pixels a side, of the images that the table is about


class _Costs(NamedTuple):
    """Nominal microseconds per image of 64x64 pixels.

    Attributes:
        forward: A forward pass of the pretrained network.
        fine_tuning: A training step of the pretrained network.
        sprint: A training step of Sprint.
        compact: A training step of Compact.
    """

    forward: float
    fine_tuning: float
    sprint: float
    compact: float


# Measured on two cores of an AMD EPYC (NOTEBOOK.md); a small GPU. Only their ratios to a budget
# matter, and a factor of two changes few choices.
_CPU_COSTS = _Costs(forward=1_000, fine_tuning=5_000, sprint=250, compact=550)
_ACCELERATOR_COSTS = _Costs(forward=30, fine_tuning=120, sprint=8, compact=15)

_STARTING_SECONDS = 10.0  # of a budget, for starting, decoding and closing
_MOST_STARTING = 0.5  # of a budget
_MOST_HEAD = 0.4  # of the time for training
_LEAST_HEAD = 0.15
_TUNED_SHARE = 0.4
_MIN_TUNED_EPOCHS = 8
_MIN_SCRATCH_EPOCHS = 15  # for larger images
_MIN_COMPACT_EPOCHS = 25  # with fewer, Sprint is better
_MIN_SCRATCH_IMAGES = 200  # to train on; with fewer, a network from scratch learns too little
_MAX_TUNED_IMAGES = 20_000  # to train on with a CPU and without a budget

_MIN_TRAINING_SECONDS = 3.0  # of a budget, for each training of a cross-validation

_LARGEST_PRETRAINED, _LEAST_PRETRAINED = 224, 64  # pixels a side
_SCRATCH_SIDES = (128, 64)  # pixels, tried in this order; 96 would cost twice as much as 128


@dataclass(frozen=True)
class Candidate:
    """A network to train, in a part of the run's time.

    Attributes:
        name: What the member is called, such as head, sprint, compact or tuned.
        fields: Config fields that make it differ from the run's config.
        share: Its part of the time for training; those of all candidates sum to 1.
        image_size: The (height, width) of the network's input.
    """

    name: str
    fields: Mapping[str, Any]
    share: float
    image_size: tuple[int, int]

    def apply(self, config: Config) -> Config:
        """Return the config of this network; fields that the user has set stay."""
        asked = config.model_fields_set - {"model"}
        fields = {name: value for name, value in self.fields.items() if name not in asked}
        return config.model_copy(update=fields)


@dataclass(frozen=True)
class Work:
    """What has to be computed, as far as it is known before images are decoded.

    Attributes:
        images: The number of images.
        training: How many of them are trained on.
        trainings: How many networks are trained: one for each fold, and the final one.
        views: How many views of an image a head is fitted on.
        own_size: The (height, width) of all sampled images if they are small and of one size.
        side: Of a square with as many pixels as the median image.
        seconds: For training; infinite without a budget.
        costs: The nominal costs on this kind of device.
    """

    images: int
    training: int
    trainings: int
    views: int
    own_size: tuple[int, int] | None
    side: int
    seconds: float
    costs: _Costs

    def head_seconds(self, side: int, views: int = 1) -> float:
        """Return the time to compute the features of all images, side x side pixels."""
        return self._seconds(views * self.images, self.costs.forward, side * side)

    def tuned_seconds(self, side: int) -> float:
        """Return the time for as many epochs of fine-tuning as it needs, side x side pixels."""
        images = _MIN_TUNED_EPOCHS * self.training * self.trainings
        return self._seconds(images, self.costs.fine_tuning, side * side)

    def scratch_seconds(self, name: str, size: tuple[int, int], epochs: int) -> float:
        """Return the time to train Sprint or Compact, whose first layer shrinks large images."""
        cost = self.costs.sprint if name == "sprint" else self.costs.compact
        stride = stem_stride(*size) / stem_stride(_UNIT_SIDE, _UNIT_SIDE)
        images = epochs * self.training * self.trainings
        return self._seconds(images, cost, size[0] * size[1] / stride**2)

    def _seconds(self, images: int, cost: float, pixels: float) -> float:
        return images * cost * pixels / _UNIT_SIDE**2 / 1e6


def choose_candidates(
    source: Source, config: Config, device: torch.device, budget_seconds: float
) -> tuple[Candidate, ...]:
    """Choose what `--model auto` trains, in the order of training.

    Args:
        source: The images.
        config: The settings; what the user has set is kept.
        device: The device to train on, whose kind matters.
        budget_seconds: The whole budget; infinity for none.
    """
    work = describe_work(source, config, device, budget_seconds)
    roles = _find_possible_roles(config, work, device)
    shares, sizes = {}, {}
    size = _fit_pretrained(HEAD, roles, config, work)
    if size:
        seconds = work.head_seconds(_side(size), work.views)
        shares[HEAD] = min(_MOST_HEAD, max(_LEAST_HEAD, seconds / work.seconds))
        sizes[HEAD] = size
    if SCRATCH in roles:
        shares[SCRATCH] = 0.0  # until the others are known
    size = _fit_pretrained(TUNED, roles, config, work)
    if size and (HEAD in sizes or HEAD not in roles):
        shares[TUNED] = _TUNED_SHARE
        sizes[TUNED] = size
    total = 1.0
    if SCRATCH in roles:
        shares[SCRATCH] = 1.0 - sum(shares.values())
    else:
        total = sum(shares.values())
    pretrained = {"model": OFFLINE_MODEL, **({} if config.weights else {"pretrained": True})}
    candidates = []
    for role, share in shares.items():
        if role == SCRATCH:
            name, size = choose_from_scratch(work, config, share * work.seconds)
            candidates.append(Candidate(name, {"model": name}, share, size))
        else:
            fields = {**pretrained, "freeze": True} if role == HEAD else pretrained
            candidates.append(Candidate(role, fields, share / total, sizes[role]))
    return tuple(candidates)


def choose_shared_size(
    source: Source, config: Config, candidates: Sequence[Candidate]
) -> Choice[tuple[int, int]]:
    """Choose the (height, width) of packed images that all candidates share.

    It is the largest input, but never larger than the images themselves: a network whose input is
    larger enlarges them on the device.
    """
    if config.size:
        return Choice(config.size, "set by you")
    own_size = find_common_size(source)
    if own_size:
        return Choice(own_size, "all sampled images have this size")
    largest = max(max(candidate.image_size) for candidate in candidates)
    side = max(MIN_SIDE, min(largest, measure_side(source)))
    reason = "the largest input of a network" if side == largest else "the median image"
    return Choice((side, side), reason)


def describe_work(
    source: Source, config: Config, device: torch.device, budget_seconds: float
) -> Work:
    """Describe what has to be computed for a source, with the splits that it will have."""
    splits, images = source.index.splits, len(source.index)
    if config.train_images:
        images = min(images, count_held_out(source) + config.train_images)
    validation, tested = (
        int((splits == given).sum()) or round(fraction * images)
        for given, fraction in (
            (VALIDATION, config.validation_fraction),
            (TEST, config.test_fraction),
        )
    )
    folds = expect_folds(source, config, tested, budget_seconds)
    if folds > 1:
        tested = 0
    starting = min(_STARTING_SECONDS, _MOST_STARTING * budget_seconds)
    return Work(
        images=images,
        training=max(1, images - validation - tested),
        trainings=folds + 1 if folds > 1 else 1,
        views=2 if config.flip else 1,
        own_size=find_common_size(source),
        side=measure_side(source),
        seconds=budget_seconds - starting if math.isfinite(budget_seconds) else math.inf,
        costs=_CPU_COSTS if device.type == "cpu" else _ACCELERATOR_COSTS,
    )


def choose_from_scratch(work: Work, config: Config, seconds: float) -> tuple[str, tuple[int, int]]:
    """Choose Compact if there is time for enough epochs, else Sprint, and the size of its input."""

    def choose_size(name: str) -> tuple[int, int]:
        return config.size or choose_scratch_size(work, name, seconds)

    size = choose_size("compact")
    if work.scratch_seconds("compact", size, _MIN_COMPACT_EPOCHS) <= seconds:
        return "compact", size
    return "sprint", choose_size("sprint")


def choose_scratch_size(work: Work, name: str, seconds: float) -> tuple[int, int]:
    """Choose the input size of a network from scratch: the images' own if they are small."""
    if work.own_size:
        return work.own_size
    if work.side <= _UNIT_SIDE:
        side = max(MIN_SIDE, work.side)
        return side, side
    sides = [side for side in _SCRATCH_SIDES if side <= work.side]
    for side in sides:
        if work.scratch_seconds(name, (side, side), _MIN_SCRATCH_EPOCHS) <= seconds:
            return side, side
    return _UNIT_SIDE, _UNIT_SIDE


def measure_side(source: Source) -> int:
    """Return the side of a square with as many pixels as the median image; 64 if unknown."""
    sides = [math.sqrt(height * width) for height, width in source.sizes]
    return round(median(sides)) if sides else _UNIT_SIDE


def expect_folds(source: Source, config: Config, tested: int, budget_seconds: float) -> int:
    """Return how many folds there will be, as far as that is known before decoding."""
    if config.folds != "auto":
        return int(config.folds)
    has_test = bool((source.index.splits == TEST).any())
    if has_test or source.times is not None or tested >= split.ENOUGH_TEST_IMAGES:
        return 1
    fewest = int(np.bincount(source.index.labels).min())
    return min(split.USUAL_FOLDS, fewest, affordable_folds(budget_seconds))


def affordable_folds(budget_seconds: float) -> int:
    """Return how many folds a budget has time for, at least 1."""
    if not math.isfinite(budget_seconds):
        return split.USUAL_FOLDS
    return max(1, int((budget_seconds - _STARTING_SECONDS) / _MIN_TRAINING_SECONDS) - 1)


def _find_possible_roles(config: Config, work: Work, device: torch.device) -> list[str]:
    """Return the roles that the settings and the number of images leave, in order of training."""
    asked = config.model_fields_set
    is_required = config.freeze or config.starts_from_weights  # that a network is pretrained
    is_allowed = is_required or (OFFLINE_MODEL in offline_models() and "pretrained" not in asked)
    fits_heads = config.loss == "cross-entropy"
    roles = []
    if config.freeze or (is_allowed and fits_heads and "freeze" not in asked):
        roles.append(HEAD)
    if not is_required:
        roles.append(SCRATCH)
    if is_allowed and not config.freeze and (fits_heads or is_required):
        roles.append(TUNED)
    if config.residency == "stream":  # a network is trained while others would wait for images
        return [SCRATCH] if SCRATCH in roles else roles[:1]
    is_few = work.training < _MIN_SCRATCH_IMAGES
    if is_few and len(roles) > 1 and SCRATCH in roles:
        roles.remove(SCRATCH)
    is_slow = device.type == "cpu" and math.isinf(work.seconds)
    if is_slow and work.training > _MAX_TUNED_IMAGES and len(roles) > 1 and TUNED in roles:
        roles.remove(TUNED)
    return roles


def _fit_pretrained(
    role: str, roles: list[str], config: Config, work: Work
) -> tuple[int, int] | None:
    """Return the largest input size that fits into the role's share, None if the role is left out.

    A role that is the only choice gets the smallest size if none fits.
    """
    if role not in roles:
        return None
    seconds_at = work.head_seconds if role == HEAD else work.tuned_seconds
    most = _MOST_HEAD if role == HEAD else _TUNED_SHARE
    seconds = (most if len(roles) > 1 else 1.0) * work.seconds
    largest = min(_LARGEST_PRETRAINED, limit_pretrained_side(work.side))
    sides = [_side(config.size)] if config.size else range(largest, _LEAST_PRETRAINED - 1, -32)
    for side in sides:
        if seconds_at(side) <= seconds:
            return config.size or (side, side)
    if SCRATCH in roles or role != roles[0]:
        return None
    return config.size or (_LEAST_PRETRAINED, _LEAST_PRETRAINED)


def limit_pretrained_side(side: int) -> int:
    """Return the largest sensible input for images of this median side: at most twice as large."""
    return max(_LEAST_PRETRAINED, 2 * side // 32 * 32)


def _side(size: tuple[int, int]) -> int:
    return round(math.sqrt(size[0] * size[1]))
