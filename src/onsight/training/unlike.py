"""Keeps what tells pictures unlike anything seen in training, at the end of a run.

D features, n pictures.
"""

from dataclasses import replace

import torch
from torch import Tensor

from onsight.choice import Choice
from onsight.data.loader import BatchSource, Loader, places_of
from onsight.errors import ModelError
from onsight.evaluation.per_image import evaluation_batch
from onsight.evaluation.unlike import choose_unlike
from onsight.features.feature_pass import with_features
from onsight.models.classifier import Classifier
from onsight.models.unlike import Unlike
from onsight.training.ranks.world import World

SAMPLE = 1000  # of either part; pictures are numbered by digest, so the first are fair


def tell_unlike(
    classifier: Classifier, pictures: BatchSource, seen: Tensor, held_out: Tensor, world: World
) -> Choice[Unlike | None]:
    """Set what tells the classifier's unlike pictures, from the first 1,000 of either part.

    seen, held_out: ids (n,) of training and of validation pictures, in ascending order. Each rank
    computes its share, and all take the first's result.
    """
    trained, others = (
        _features(classifier, pictures, ids[:SAMPLE], world) for ids in (seen, held_out)
    )
    return set_unlike(classifier, trained, others, world)


def set_unlike(
    classifier: Classifier, seen: Tensor, held_out: Tensor, world: World
) -> Choice[Unlike | None]:
    """The same from the features (n, D) of either part, which every rank knows."""
    choice = choose_unlike(seen, held_out)
    if choice.value:  # on every rank or on none, but rounding differs between machines
        agreed = replace(choice.value, threshold=world.agree(choice.value.threshold))
        choice = replace(choice, value=agreed)
    classifier.unlike = choice.value and choice.value.to(classifier.device)
    return choice


def _features(classifier: Classifier, pictures: BatchSource, ids: Tensor, world: World) -> Tensor:
    """(n, D), on the CPU of every rank; D is 0 for a network without features."""
    device, (height, width, _) = classifier.device, pictures.shape
    at_once = evaluation_batch(device, (height, width))
    loader = Loader(pictures, ids, at_once, device, world.rank, world.size)
    batches = world.follow(loader.in_order(), "comparing pictures")
    parts = [(batch.ids, _of_batch(classifier, batch.images)) for batch in batches]
    wide = int(world.agree(parts[0][1].shape[1] if parts else 0))  # the first rank has some
    features = torch.zeros(len(ids), wide)
    for some, values in parts:
        features[places_of(ids, some.cpu())] = values.cpu()
    return world.all_reduce(features)


def _of_batch(classifier: Classifier, images: Tensor) -> Tensor:
    try:
        return with_features(classifier, images)[1]
    except ModelError:  # it does not end in a linear layer
        return torch.zeros(len(images), 0)
