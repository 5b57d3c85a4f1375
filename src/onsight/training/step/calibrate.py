"""Fits the temperature of a trained classifier on validation pictures, at the end of a run."""

import torch
from torch import Tensor

from onsight.choice import Choice
from onsight.data.loader import BatchSource, Loader
from onsight.evaluation.per_image import BATCH_SIZE
from onsight.evaluation.temperature import choose_temperature
from onsight.models.classifier import Classifier
from onsight.training.ranks.world import World

SAMPLE = 4096  # plenty for one number; pictures are numbered by digest, so the first are fair


def calibrate(
    classifier: Classifier, pictures: BatchSource, ids: Tensor, world: World
) -> Choice[float]:
    """Set the classifier's temperature, from the first 4,096 validation pictures ids (n,).

    Every rank computes the same, and to be sure takes the first rank's.
    """
    loader = Loader(pictures, ids[:SAMPLE], BATCH_SIZE, classifier.device)
    outputs = [(classifier(one.images).cpu(), one.labels.cpu()) for one in loader.in_order()]
    nothing = (torch.empty(0, 1), torch.empty(0, dtype=torch.int64))
    logits, labels = (torch.cat(parts) for parts in zip(*(outputs or [nothing]), strict=True))
    choice = choose_temperature(logits, labels)
    mine = torch.tensor(choice.value if world.is_main else 0.0, dtype=torch.float64)
    classifier.temperature = world.all_reduce(mine).item()
    return choice
