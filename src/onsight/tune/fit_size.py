"""Before decoding under a budget: the image size that fits, or a refusal if nothing does."""

import copy
import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import (
    MIN_PER_CLASS,
    choose_packed_size,
    count_required_images,
    make_format,
)
from onsight.data.index import TEST, TRAIN, UNSPLIT, VALIDATION
from onsight.data.pack import is_packed
from onsight.data.packing import PackJob
from onsight.data.sources.source import Source
from onsight.errors import BudgetTooSmall
from onsight.models.classifier import VIEWS
from onsight.ranks.world import World
from onsight.tune.batch_size import MIN_BATCH_SIZE
from onsight.tune.budget import Budget
from onsight.tune.pace import Pace, Size, measure_pace

_SURE_SECONDS = 4.0  # before a refusal, however small the budget: a busy moment is no reason
_PACE_SHARE = 0.4  # of the seconds for trials


@dataclass(frozen=True)
class Workload:
    """What a run has to do: images to decode, images to evaluate at the end, batch size."""

    decoded: int
    evaluated: int
    batch_size: int = MIN_BATCH_SIZE


@dataclass(frozen=True)
class Undecoded:
    """Images that are still to be decoded, and what will be trained on them.

    cache: the folder of decoded images; module: the user's own network, if any; is_limited:
    whether decoding ends in time, with fewer training images if need be.
    """

    source: Source
    config: Config
    device: torch.device
    threads: int
    cache: Path | None = None
    module: nn.Module | None = None
    is_limited: bool = False

    def pace(self, size: Size, most_seconds: float) -> Pace:
        """How fast this machine is with images of this (height, width)."""
        module = copy.deepcopy(self.module)
        pace = measure_pace(
            self.source, self.config, size, self.device, self.threads, most_seconds, module
        )
        return replace(pace, decode_seconds=0.0) if self._is_packed(size) else pace

    def workload(self) -> Workload:
        """What a run on them has to do at least, as far as is known before decoding."""
        config, splits = self.config, self.source.index.splits
        count = {one: int((splits == one).sum()) for one in (UNSPLIT, TRAIN, VALIDATION, TEST)}
        free = count[UNSPLIT] + count[TRAIN]
        test = count[TEST] or round(config.test_fraction * free)
        validation = count[VALIDATION] or round(config.validation_fraction * free)
        asked = config.batch_size if "batch_size" in config.model_fields_set else MIN_BATCH_SIZE
        evaluated = evaluated_images(config, validation, test)
        if config.freeze:  # with the features of fewer images, a refusal says more than a head
            evaluated += min(free, MIN_PER_CLASS * len(self.source.index.classes))
        decoded = count_required_images(self.source) if self.is_limited else len(splits)
        return Workload(decoded, evaluated, min(asked, free))

    def _is_packed(self, size: Size) -> bool:
        packed = choose_packed_size(self.source, size, self.config).value
        return is_packed(PackJob(self.source, make_format(self.config, size, packed)), self.cache)


def fit_to_budget(
    budget: Budget, undecoded: Undecoded, size: Choice[Size], is_open: bool, world: World
) -> tuple[Choice[Size], Pace | None]:
    """The (height, width) in pixels to train with: the given size unless that is open.

    The first rank measures and decides; it also gets the pace. Raises BudgetTooSmall.
    """
    measured: list[Pace] = []

    def decide() -> str:
        timed_size = TIMED if is_open else size.value
        pace = _measured(budget, undecoded, timed_size, _PACE_SHARE * budget.trial_seconds)
        work = undecoded.workload()
        fitted = _fitted(budget, pace, work) if is_open else size
        if not is_enough(budget, pace.at(fitted.value), work):
            most = max(_SURE_SECONDS, budget.trial_seconds)
            pace = pace.best(_measured(budget, undecoded, timed_size, most))
            fitted = _fitted(budget, pace, work) if is_open else size
            if not is_enough(budget, pace.at(fitted.value), work):
                raise too_small(budget, undecoded.config, pace.at(fitted.value), work)
        measured.append(pace.at(fitted.value))
        return json.dumps(asdict(fitted))

    facts = json.loads(world.broadcast("image size", decide))
    height, width = facts["value"]
    choice = Choice((height, width), facts["reason"], facts["figure"])
    return choice, measured[0] if measured else None


def _measured(budget: Budget, undecoded: Undecoded, size: Size, most_seconds: float) -> Pace:
    """The pace, with the time that it takes counted as that of a trial."""
    with budget.trying():
        pace = undecoded.pace(size, most_seconds)
    budget.read_own_clock()
    return pace


def _fitted(budget: Budget, pace: Pace, work: Workload) -> Choice[Size]:
    return fit_image_size(pace, work.decoded, budget.left_seconds, budget.seconds)


TIMED = (64, 64)  # (height, width) in pixels of the images that the pace is measured with

# Larger images pay off only with enough epochs: (side in pixels, epochs needed).
_SIZES = ((128, 20), (96, 15), (64, 4), (48, 3), (32, 0))


def fit_image_size(pace: Pace, images: int, seconds: float, more: float) -> Choice[Size]:
    """The largest (height, width) in pixels for which there is enough time.

    images: n to decode and to train on; seconds: for both; more: seconds in addition with twice
    the budget.
    """
    side, later = (_side(pace, images, time) for time in (seconds, seconds + more))
    epochs = _epochs(pace, side, images, seconds)
    reason = f"the largest that there is time to train on, about {epochs:.1f} epochs"
    twice = f"; with twice the time {later}x{later}" if later > side else ""
    return Choice((side, side), reason + twice, epochs)


def _side(pace: Pace, images: int, seconds: float) -> int:
    return next(s for s, least in _SIZES if _epochs(pace, s, images, seconds) >= least)


def _epochs(pace: Pace, side: int, images: int, seconds: float) -> float:
    """How many epochs over the images (side x side pixels) fit into the given seconds."""
    step = pace.at((side, side)).train.per_image
    return max(0.0, seconds - images * pace.decode_seconds) / (images * step)


_BUILDS = 2  # of the network after decoding: to time its steps, and to train it
_WARM_UP_STEPS = 4  # how many steps the first ones cost together, trial and training
_MARGIN = 1.1  # what a user is told to give: a busier moment must not refuse it again
_SIDES = (192, 160, 128, 112, 96, 64, 48, 32)  # pixels, offered instead of larger ones


def evaluated_images(config: Config, validation: int, test: int) -> int:
    """How many images pass through the network after training, apart from its validation."""
    views = 1 + len(VIEWS.get(config.tta, ()))
    return views * (test or validation)


def least_budget_seconds(
    pace: Pace, work: Workload, spent_seconds: float, closing_seconds: float
) -> float:
    """Seconds of the least budget: what is spent, decoding, a few steps, evaluating, closing."""
    return (
        spent_seconds
        + work.decoded * pace.decode_seconds
        + _BUILDS * pace.build_seconds
        + _WARM_UP_STEPS * pace.train.at(work.batch_size)
        + work.evaluated * pace.evaluate.per_image
        + closing_seconds
    )


def is_enough(budget: Budget, pace: Pace, work: Workload) -> bool:
    """Whether the run can end in time."""
    least = least_budget_seconds(pace, work, budget.now, budget.closing_seconds)
    return least <= budget.seconds


def too_small(budget: Budget, config: Config, pace: Pace, work: Workload) -> BudgetTooSmall:
    """The refusal of a budget, which names the least one and an image size that would do."""

    def least(at: Pace) -> float:
        return least_budget_seconds(at, work, budget.now, budget.closing_seconds)

    height, width = pace.size
    smaller = [side for side in _SIDES if side < min(height, width)]
    fits = [side for side in smaller if _MARGIN * least(pace.at((side, side))) <= budget.seconds]
    instead = f", or --image-size {fits[0]}" if fits else ""
    return BudgetTooSmall(
        f"--budget {config.budget} is too short for {config.model} at {height}x{width} on "
        f"{work.decoded:,} images: at least about {_rounded_up(_MARGIN * least(pace)):,} s here; "
        f"give that{instead}"
    )


def _rounded_up(seconds: float) -> int:
    """Whole seconds of two digits, such as 8, 38 or 240."""
    unit = int(10 ** max(0, math.floor(math.log10(max(1.0, seconds))) - 1))
    return math.ceil(seconds / unit) * unit
