"""Evaluates a trained network on the held-out images, over all ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

from onsight.data.dataset import Dataset
from onsight.data.index import SPLIT_NAMES
from onsight.data.loader import Batch, Loader
from onsight.evaluation.out_of_distribution import evaluate_with_scores
from onsight.evaluation.predictions import PredictionTable, evaluate_batches, evaluation_batch_size
from onsight.evaluation.results import FoldResult
from onsight.models.classifier import ImageClassifier, TtaForward
from onsight.ranks.ddp import gather_per_image
from onsight.ranks.world import World


@dataclass(frozen=True)
class Evaluation:
    """The predictions for every held-out image."""

    per_image: PredictionTable
    views: PredictionTable | None  # predictions with test-time augmentation, if requested
    split: str
    # Result of each fold, if the predictions are those of a cross-validation.
    folds: tuple[FoldResult, ...] = ()


def evaluate(classifier: ImageClassifier, dataset: Dataset, tta: str, world: World) -> Evaluation:
    """Predict the test images, or the validation images if there are no test images.

    Args:
        tta: The kind of test-time augmentation, or "none".
        world: The ranks, which share the images.

    Returns:
        The predictions for all images, on every rank.
    """
    split = dataset.evaluated_split
    ids = dataset.ids(split)
    device = classifier.device
    batch_size = evaluation_batch_size(device, classifier.input_size(dataset.images.shape[:2]))
    loader = Loader(dataset.images, ids, batch_size, device, world.rank, world.size)

    def batches() -> Iterator[Batch]:
        return world.report_each(loader.in_order(), f"evaluating the {SPLIT_NAMES[split]} images")

    per_image = gather_per_image(evaluate_with_scores(classifier, batches()), ids, world)
    views = None
    if tta != "none":
        table = evaluate_batches(TtaForward(classifier, tta), batches())
        views = gather_per_image(table, ids, world)
    return Evaluation(per_image, views, SPLIT_NAMES[split])
