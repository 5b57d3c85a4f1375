"""Before decoding under a budget: the image size that fits, or a refusal if nothing does."""

import copy
import json
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
from onsight.ranks.world import World
from onsight.training.budget import Budget
from onsight.training.images.fit_batch import SMALLEST
from onsight.training.images.fit_size import TIMED, fit_image_size
from onsight.training.images.least_budget import (
    Workload,
    evaluated_images,
    is_enough,
    too_small,
)
from onsight.training.images.pace import Pace, Size, measure_pace

_SURE_SECONDS = 4.0  # before a refusal, however small the budget: a busy moment is no reason
_PACE_SHARE = 0.4  # of the seconds for trials


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
        asked = config.batch_size if "batch_size" in config.model_fields_set else SMALLEST
        evaluated = evaluated_images(config, free, validation, test)
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
    budget.peek()
    return pace


def _fitted(budget: Budget, pace: Pace, work: Workload) -> Choice[Size]:
    return fit_image_size(pace, work.decoded, budget.left_seconds, budget.seconds)
