"""Model the cost of a training step: a fixed part and a part per image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StepCosts:
    """A model of a step: seconds = fixed_seconds + image_seconds * batch size, both at least 0."""

    fixed_seconds: float
    image_seconds: float
    max_error: float  # largest relative error of the model at a measured batch size

    def step_seconds(self, batch_size: int) -> float:
        """Predict the seconds per step."""
        return self.fixed_seconds + self.image_seconds * batch_size


def fit_costs(step_seconds: dict[int, float]) -> StepCosts | None:
    """Fit {batch size: seconds} by non-negative least squares; None for fewer than two sizes.

    The errors are relative to each step, so that large batches do not outweigh small ones.
    """
    if len(step_seconds) < 2:
        return None
    ones = [1 / seconds for seconds in step_seconds.values()]
    sizes = [size / seconds for size, seconds in step_seconds.items()]
    fixed, image = min(
        (costs for costs in _candidate_solutions(ones, sizes) if min(costs) >= 0),
        key=lambda costs: sum(error**2 for error in _relative_errors(ones, sizes, *costs)),
    )
    errors = _relative_errors(ones, sizes, fixed, image)
    return StepCosts(fixed, image, max(abs(error) for error in errors))


def find_crossover(first: StepCosts, second: StepCosts, smallest: int, largest: int) -> int | None:
    """Return the batch size from which on the second is faster; None if it always or never is."""
    saved = first.image_seconds - second.image_seconds
    if saved <= 0 or second.step_seconds(smallest) <= first.step_seconds(smallest):
        return None
    size = math.floor((second.fixed_seconds - first.fixed_seconds) / saved) + 1
    return size if size <= largest else None


def _candidate_solutions(
    ones: Sequence[float], sizes: Sequence[float]
) -> list[tuple[float, float]]:
    """Solve fixed * ones + image * sizes = 1: the free optimum, and with either cost 0."""
    one_one, size_size, one_size = _dot(ones, ones), _dot(sizes, sizes), _dot(ones, sizes)
    one_sum, size_sum = sum(ones), sum(sizes)
    determinant = one_one * size_size - one_size**2
    free = (
        (one_sum * size_size - size_sum * one_size) / determinant,
        (size_sum * one_one - one_sum * one_size) / determinant,
    )
    return [free, (one_sum / one_one, 0.0), (0.0, size_sum / size_size)]


def _relative_errors(
    ones: Sequence[float], sizes: Sequence[float], fixed: float, image: float
) -> list[float]:
    pairs = zip(ones, sizes, strict=True)
    return [fixed * inverse + image * size - 1 for inverse, size in pairs]


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))
