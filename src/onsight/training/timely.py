"""Evaluation that ends in time: on as many batches as fit into the seconds left."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from torch import Tensor

from onsight.data.loader import Batch, Loader
from onsight.evaluation.predictions import PredictionTable, evaluate_batches
from onsight.ranks.ddp import gather_per_image
from onsight.ranks.world import World
from onsight.tune.budget import Budget

_BATCH_SECONDS = 1.0  # between two looks at the clock, about
_FEWEST = 8  # images of a batch


def shortened(loader: Loader, budget: Budget) -> Loader:
    """A loader of the images that a budget has time to evaluate.

    Images are numbered by digest, so the first are a fair sample. Where they are slow, batches
    are small enough to look at the clock between them.
    """
    size = loader.batch_size
    while size > _FEWEST and size * budget.image_seconds > _BATCH_SECONDS:
        size //= 2
    return replace(loader, ids=loader.ids[: budget.validated], batch_size=size)


def evaluate_in_time(
    forward: Callable[[Tensor], Tensor], loader: Loader, budget: Budget, world: World
) -> PredictionTable:
    """Evaluate a loader's images until the time that a budget has for validation is over.

    All ranks have the same seconds, each by its own clock; entries are in the loader's order.
    """
    budget.look()
    begun = budget.now
    expected = loader.batch_size * budget.image_seconds * world.size
    batches = _in_time(
        world.follow(loader.in_order(), "validating"), budget.validation_seconds, expected
    )
    judged = gather_per_image(evaluate_batches(forward, batches), loader.ids, world)
    budget.look()
    budget.judged(len(judged), budget.now - begun)
    return judged


def _in_time(batches: Iterable[Batch], seconds: float, expected: float) -> Iterator[Batch]:
    """Batches as long as the next, expected to take as long as the one before it, still fits."""
    begun = time.monotonic()
    for batch in batches:
        handed = time.monotonic()
        if handed - begun + expected > seconds:
            return
        yield batch
        expected = time.monotonic() - handed
