"""Judges a trained network on the held-out pictures, over all ranks."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from onsight.data.dataset import Dataset
from onsight.data.index import SPLIT_NAMES, TEST, VALIDATION
from onsight.data.loader import Loader
from onsight.evaluation.per_image import PerImageResults, evaluate_batches, evaluation_batch
from onsight.evaluation.results import FoldResult
from onsight.models.classifier import Classifier
from onsight.models.tta import TtaForward
from onsight.training.ranks.ddp import gather_per_image
from onsight.training.ranks.world import World


@dataclass(frozen=True)
class Judged:
    """The predictions for every held-out picture, and how they came about.

    views: predictions by means over several views, if asked for; split: the name of the split;
    folds: a row for each, if the predictions are those of several models.
    """

    per_image: PerImageResults
    views: PerImageResults | None
    split: str
    folds: tuple[FoldResult, ...] = ()


def judge(classifier: Classifier, dataset: Dataset, tta: str, world: World) -> Judged:
    """What the classifier predicts for the test part, or else the validation part.

    Every rank gets the same.
    """
    split = TEST if (dataset.splits == TEST).any() else VALIDATION
    ids = dataset.ids(split)
    device, ranks = classifier.device, (world.rank, world.size)
    at_once = evaluation_batch(device, dataset.format.shown)
    loader = Loader(dataset.pictures, ids, at_once, device, *ranks)
    per_image = _predict(classifier, loader, world, classifier.temperature)
    views = None if tta == "one" else _predict(TtaForward(classifier, tta), loader, world)
    return Judged(per_image, views, SPLIT_NAMES[split])


def _predict(
    forward: Callable[[Tensor], Tensor], loader: Loader, world: World, temperature: float = 1.0
) -> PerImageResults:
    judged = evaluate_batches(forward, loader.in_order(), temperature)
    return gather_per_image(judged, loader.ids, world)
