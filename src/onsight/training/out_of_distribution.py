"""Keeps what tells images unlike anything seen in training, at the end of a run.

D features, n images.
"""

from dataclasses import replace

import torch
from torch import Tensor

from onsight.choice import Choice
from onsight.data.loader import BatchSource, Loader, find_positions
from onsight.errors import ModelError
from onsight.evaluation.out_of_distribution import choose_detector
from onsight.evaluation.predictions import evaluation_batch_size
from onsight.features.feature_pass import logits_and_features
from onsight.models.classifier import Classifier
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.training.ranks.world import World

SAMPLE = 1000  # of either part; images are numbered by digest, so the first are fair


def fit_out_of_distribution_detector(
    classifier: Classifier, images: BatchSource, seen: Tensor, held_out: Tensor, world: World
) -> Choice[OutOfDistributionDetector | None]:
    """Set what tells the classifier's unlike images, from the first 1,000 of either part.

    seen, held_out: ids (n,) of training and of validation images, in ascending order. Each rank
    computes its share, and all take the first's result.
    """
    trained, others = (
        _features(classifier, images, ids[:SAMPLE], world) for ids in (seen, held_out)
    )
    return set_out_of_distribution(classifier, trained, others, world)


def set_out_of_distribution(
    classifier: Classifier, seen: Tensor, held_out: Tensor, world: World
) -> Choice[OutOfDistributionDetector | None]:
    """The same from the features (n, D) of either part, which every rank knows."""
    choice = choose_detector(seen, held_out)
    if choice.value:  # on every rank or on none, but rounding differs between machines
        agreed = replace(choice.value, threshold=world.agree(choice.value.threshold))
        choice = replace(choice, value=agreed)
    classifier.out_of_distribution = choice.value and choice.value.to(classifier.device)
    return choice


def _features(classifier: Classifier, images: BatchSource, ids: Tensor, world: World) -> Tensor:
    """(n, D), on the CPU of every rank; D is 0 for a network without features."""
    device, (height, width, _) = classifier.device, images.shape
    at_once = evaluation_batch_size(device, (height, width))
    loader = Loader(images, ids, at_once, device, world.rank, world.size)
    batches = world.follow(loader.in_order(), "comparing images")
    parts = [(batch.ids, _of_batch(classifier, batch.images)) for batch in batches]
    wide = int(world.agree(parts[0][1].shape[1] if parts else 0))  # the first rank has some
    features = torch.zeros(len(ids), wide)
    for some, values in parts:
        features[find_positions(ids, some.cpu())] = values.cpu()
    return world.all_reduce(features)


def _of_batch(classifier: Classifier, images: Tensor) -> Tensor:
    try:
        return logits_and_features(classifier, images)[1]
    except ModelError:  # it does not end in a linear layer
        return torch.zeros(len(images), 0)
