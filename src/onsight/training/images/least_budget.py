"""The least budget in which a run can end in time, and the refusal of less before decoding."""

import math
from dataclasses import dataclass

from onsight.config import Config
from onsight.errors import BudgetTooSmall
from onsight.models.classifier import VIEWS
from onsight.step.calibrate import RECALIBRATION_IMAGES
from onsight.training.budget import Budget
from onsight.training.images.fit_batch import SMALLEST
from onsight.training.images.pace import Pace

_BUILDS = 2  # of the network after decoding: to time its steps, and to train it
_WARM_UP_STEPS = 4  # how many steps the first ones cost together, trial and training
_MARGIN = 1.1  # what a user is told to give: a busier moment must not refuse it again
_SIDES = (192, 160, 128, 112, 96, 64, 48, 32)  # pixels, offered instead of larger ones


@dataclass(frozen=True)
class Workload:
    """What a run has to do: images to decode, images to evaluate at the end, batch size."""

    decoded: int
    evaluated: int
    batch_size: int = SMALLEST


def evaluated_images(config: Config, training: int, validation: int, test: int) -> int:
    """How many images pass through the network after training, apart from its validation."""
    views = 1 + len(VIEWS.get(config.tta, ()))
    again = (
        min(RECALIBRATION_IMAGES, training) if config.recalibrate_norm and not config.freeze else 0
    )
    return views * (test or validation) + again


def least_budget_seconds(
    pace: Pace, work: Workload, spent_seconds: float, closing_seconds: float
) -> float:
    """Seconds of the least budget: what is spent, decoding, a few steps, evaluating, closing."""
    return (
        spent_seconds
        + work.decoded * pace.decode_seconds
        + _BUILDS * pace.build_seconds
        + _WARM_UP_STEPS * pace.train.at(work.batch_size)
        + work.evaluated * pace.judge.per_image
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
