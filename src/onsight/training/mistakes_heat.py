"""Where a run's worst mistakes speak for the class that was predicted, drawn if that is quick."""

import time
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from onsight.data.dataset import Dataset
from onsight.data.loader import Loader
from onsight.errors import ConfigError, ModelError
from onsight.evaluation.predictions import PredictionTable
from onsight.heatmaps.heat import heat_maps, require_captum
from onsight.models.classifier import Classifier
from onsight.report.gallery import MistakesHeat, worst_mistakes
from onsight.training.budget import Budget
from onsight_explain.devices import is_out_of_memory

_AT_ONCE = 4  # images between two looks at the clock
_SECONDS = 3.0
_EVALUATIONS = 30  # what the heat of an image takes at most, in evaluations of one


def find_heat(
    dataset: Dataset,
    classifier: Classifier,
    per_image: PredictionTable,
    budget: Budget | None = None,
) -> MistakesHeat:
    """The heat of the worst mistakes, of as many as there is time for.

    That is three seconds, or what is left of a budget if that is less.
    """
    heats = [np.zeros((0, *dataset.images.shape[:2]), np.float32)]
    reason = ""
    if len(worst_mistakes(per_image)) == 0:
        return MistakesHeat(heats[0])
    try:
        for heat in _timely_heat(dataset, classifier, per_image, budget):
            heats.append(heat)
    except (ConfigError, ModelError, _OutOfTime) as error:
        reason = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = "memory ran out"
    return MistakesHeat(np.concatenate(heats), reason)


def _timely_heat(
    dataset: Dataset, classifier: Classifier, per_image: PredictionTable, budget: Budget | None
) -> Iterator[NDArray[np.float32]]:
    """Heat of a few mistakes at a time, (b, H, W). Raises what `heat_maps` raises, _OutOfTime."""
    deadline = time.monotonic() + (budget.spare_seconds(_SECONDS) if budget else _SECONDS)
    needed = _EVALUATIONS * _AT_ONCE * (budget.image_seconds if budget else 0.0)
    require_captum()
    places = worst_mistakes(per_image)
    ids, predicted = (torch.from_numpy(of[places]) for of in (per_image.ids, per_image.predicted))
    batches = Loader(dataset.images, ids, _AT_ONCE, classifier.device).in_order()
    for batch, classes in zip(batches, predicted.split(_AT_ONCE), strict=True):
        if time.monotonic() + needed > deadline:
            raise _OutOfTime("there was no time to compute more")
        yield heat_maps(classifier, batch.images, classes)


class _OutOfTime(Exception):
    """The next heat maps would come too late."""
