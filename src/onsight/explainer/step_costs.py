"""Model the cost of a training step: a fixed part and a part per image."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
    sizes, seconds = np.array(list(step_seconds.items())).T
    shares = np.stack([1 / seconds, sizes / seconds], axis=1)  # of a step, per unit of each cost
    solutions = [_solve(shares, costs) for costs in ([0, 1], [0], [1])]
    best = min(
        (costs for costs in solutions if costs.min() >= 0),
        key=lambda costs: ((shares @ costs - 1) ** 2).sum(),
    )
    fixed, image = best.tolist()
    return StepCosts(fixed, image, float(np.abs(shares @ best - 1).max()))


def find_crossover(first: StepCosts, second: StepCosts, smallest: int, largest: int) -> int | None:
    """Return the batch size from which on the second is faster; None if it always or never is."""
    saved = first.image_seconds - second.image_seconds
    if saved <= 0 or second.step_seconds(smallest) <= first.step_seconds(smallest):
        return None
    size = math.floor((second.fixed_seconds - first.fixed_seconds) / saved) + 1
    return size if size <= largest else None


def _solve(shares: NDArray[np.float64], costs: list[int]) -> NDArray[np.float64]:
    """Return the best fixed and image seconds, (2,), if those that are not listed are 0."""
    solution = np.zeros(2)
    solution[costs] = np.linalg.lstsq(shares[:, costs], np.ones(len(shares)), rcond=None)[0]
    return solution
