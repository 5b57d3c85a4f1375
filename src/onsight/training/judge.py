"""Judges a trained network on the pictures of a split, over all ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from onsight.data.dataset import Dataset
from onsight.data.loader import Loader
from onsight.evaluation.per_image import BATCH_SIZE, PerImageResults, evaluate_batches
from onsight.models.classifier import Classifier
from onsight.models.tta import TtaForward
from onsight.training.ranks.ddp import gather_per_image
from onsight.training.ranks.world import World


@dataclass(frozen=True)
class Judged:
    """The predictions for every picture of a split; views: means over views, if asked for."""

    per_image: PerImageResults
    views: PerImageResults | None


def judge(classifier: Classifier, dataset: Dataset, split: int, tta: str, world: World) -> Judged:
    """What the classifier predicts for the pictures of a split, the same on every rank."""
    ids = dataset.ids(split)
    loader = Loader(dataset.pictures, ids, BATCH_SIZE, classifier.device, world.rank, world.size)
    per_image = _predict(classifier, loader, world, classifier.temperature)
    views = None if tta == "one" else _predict(TtaForward(classifier, tta), loader, world)
    return Judged(per_image, views)


def _predict(
    forward: Callable[[Tensor], Tensor], loader: Loader, world: World, temperature: float = 1.0
) -> PerImageResults:
    judged = evaluate_batches(forward, loader.in_order(), temperature)
    return gather_per_image(judged, loader.ids, world)
