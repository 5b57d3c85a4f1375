"""Fits the temperature of a trained classifier on validation images, at the end of a run."""

import torch
from torch import Tensor

from onsight.choice import Choice
from onsight.data.loader import BatchSource, Loader, find_positions
from onsight.evaluation.predictions import evaluation_batch_size
from onsight.evaluation.temperature import choose_temperature
from onsight.models.classifier import Classifier
from onsight.training.ranks.world import World

SAMPLE = 4096  # plenty for one number; images are numbered by digest, so the first are fair


def calibrate(
    classifier: Classifier, images: BatchSource, ids: Tensor, world: World
) -> Choice[float]:
    """Set the classifier's temperature, from the first 4,096 validation images ids (n,).

    ids are in ascending order. Each rank computes its share, and all take the first's result.
    """
    ids = ids[:SAMPLE]
    logits = _logits(classifier, images, ids, world)
    return set_temperature(classifier, logits, images.labels_of(ids).cpu(), world)


def set_temperature(
    classifier: Classifier, logits: Tensor, labels: Tensor, world: World
) -> Choice[float]:
    """The same from logits (n, K) and labels (n,) that every rank knows."""
    choice = choose_temperature(logits, labels)
    mine = torch.tensor(choice.value if world.is_main else 0.0, dtype=torch.float64)
    classifier.temperature = world.all_reduce(mine).item()
    return choice


def _logits(classifier: Classifier, images: BatchSource, ids: Tensor, world: World) -> Tensor:
    """(n, K), on the CPU of every rank."""
    device, (height, width, _) = classifier.device, images.shape
    at_once = evaluation_batch_size(device, (height, width))
    loader = Loader(images, ids, at_once, device, world.rank, world.size)
    batches = world.follow(loader.in_order(), "fitting the temperature")
    parts = [(batch.ids, classifier(batch.images).cpu()) for batch in batches]
    classes = int(world.agree(parts[0][1].shape[1] if parts else 1))  # the first rank has some
    logits = torch.zeros(len(ids), classes)
    for some, values in parts:
        logits[find_positions(ids, some.cpu())] = values
    return world.all_reduce(logits)
