"""Fits the temperature of a trained classifier on validation images, at the end of a run."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from onsight.choice import Choice
from onsight.data.loader import BatchSource, Loader, find_positions
from onsight.errors import ModelError
from onsight.evaluation.out_of_distribution import choose_detector
from onsight.evaluation.predictions import BATCH_SIZE, evaluation_batch_size
from onsight.evaluation.temperature import choose_temperature
from onsight.features.feature_pass import logits_and_features
from onsight.models.classifier import Classifier, autocast
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.ranks.world import World

TEMPERATURE_IMAGES = 4096  # plenty for one number; the first by digest are a fair sample


def calibrate(
    classifier: Classifier, images: BatchSource, ids: Tensor, world: World
) -> Choice[float]:
    """Set the classifier's temperature, from the first 4,096 validation images ids (n,).

    ids are in ascending order. Each rank computes its share, and all take the first's result.
    """
    ids = ids[:TEMPERATURE_IMAGES]
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
    batches = world.report_each(loader.in_order(), "fitting the temperature")
    parts = [(batch.ids, classifier(batch.images).cpu()) for batch in batches]
    classes = int(world.agree(parts[0][1].shape[1] if parts else 1))  # the first rank has some
    logits = torch.zeros(len(ids), classes)
    for some, values in parts:
        logits[find_positions(ids, some.cpu())] = values
    return world.all_reduce(logits)


RECALIBRATION_IMAGES = 4096  # images are numbered by digest, so the first are a fair sample


@torch.no_grad()
def recalibrate_norms(classifier: Classifier, images: BatchSource, ids: Tensor) -> None:
    """Set every batch norm's statistics to their mean over batches of the first 4,096 images.

    ids: int64 (n,) training images. Every rank computes the same. Wu and Johnson,
    arXiv:2105.07576, section 3.
    """
    net = classifier.net.eval()  # dropout and the like stay off
    norms = [one for one in net.modules() if isinstance(one, _BatchNorm)]
    norms = [norm for norm in norms if norm.track_running_stats]
    if not norms or len(ids) == 0:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # in torch's terms the plain mean over batches
        norm.train()
    # All batches weigh the same, so a smaller last one is left out.
    sample = ids[: min(RECALIBRATION_IMAGES, len(ids) // BATCH_SIZE * BATCH_SIZE or len(ids))]
    for batch in Loader(images, sample, BATCH_SIZE, classifier.device).in_order():
        with autocast(classifier.precision, classifier.device):
            net(classifier.normalization.apply(batch.images))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.eval()


DETECTOR_IMAGES = 1000  # of either part; images are numbered by digest, so the first are fair


def fit_out_of_distribution_detector(
    classifier: Classifier, images: BatchSource, seen: Tensor, held_out: Tensor, world: World
) -> Choice[OutOfDistributionDetector | None]:
    """Set what tells the classifier's unlike images, from the first 1,000 of either part.

    seen, held_out: ids (n,) of training and of validation images, in ascending order. Each rank
    computes its share, and all take the first's result.
    """
    trained, others = (
        _features(classifier, images, ids[:DETECTOR_IMAGES], world) for ids in (seen, held_out)
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
    batches = world.report_each(loader.in_order(), "comparing images")
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
