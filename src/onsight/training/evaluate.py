"""Evaluates a trained network on the held-out images, over all ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

from onsight.data.dataset import Dataset
from onsight.data.index import SPLIT_NAMES, TEST, VALIDATION
from onsight.data.loader import Batch, Loader
from onsight.evaluation.out_of_distribution import evaluate_with_scores
from onsight.evaluation.predictions import PredictionTable, evaluate_batches, evaluation_batch_size
from onsight.evaluation.results import FoldResult
from onsight.models.classifier import Classifier, TtaForward
from onsight.ranks.ddp import gather_per_image
from onsight.ranks.world import World


@dataclass(frozen=True)
class Evaluation:
    """The predictions for every held-out image, and how they came about.

    views: predictions by means over several views, if asked for; split: the name of the split;
    folds: a row for each, if the predictions are those of several models.
    """

    per_image: PredictionTable
    views: PredictionTable | None
    split: str
    folds: tuple[FoldResult, ...] = ()


def evaluate(classifier: Classifier, dataset: Dataset, tta: str, world: World) -> Evaluation:
    """Return what the classifier predicts for the test part, or else the validation part.

    Every rank gets the same.
    """
    split = TEST if (dataset.splits == TEST).any() else VALIDATION
    ids = dataset.ids(split)
    device, ranks = classifier.device, (world.rank, world.size)
    at_once = evaluation_batch_size(device, dataset.format.model_size)
    loader = Loader(dataset.images, ids, at_once, device, *ranks)

    def batches() -> Iterator[Batch]:
        return world.report_each(loader.in_order(), f"evaluating the {SPLIT_NAMES[split]} images")

    mine = evaluate_with_scores(classifier, batches())
    per_image = gather_per_image(mine, ids, world)
    views = None
    if tta != "none":
        mine = evaluate_batches(TtaForward(classifier, tta), batches())
        views = gather_per_image(mine, ids, world)
    return Evaluation(per_image, views, SPLIT_NAMES[split])
