"""Fits what a classifier gets from images besides its trained weights.

These are its temperature, its out-of-distribution detector and the statistics of its batch norms.
n images, K classes, D features.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.loader import BatchSource, Loader, find_positions
from onsight.errors import ModelError
from onsight.evaluation.out_of_distribution import choose_detector
from onsight.evaluation.predictions import BATCH_SIZE, HeldOutLogits, evaluation_batch_size
from onsight.evaluation.temperature import choose_temperature
from onsight.features.feature_pass import logits_and_features
from onsight.models.classifier import Classifier, ImageClassifier, autocast
from onsight.models.out_of_distribution import OutOfDistributionDetector
from onsight.ranks.world import World

DETECTOR_IMAGES = 1000  # of the training and of the validation images
RECALIBRATION_IMAGES = 1024

# Running statistics average over about ten steps, in which weights change much at first. With
# sprint and compact, recalibration gained up to 36 points after 10 to 40 steps and nothing after
# 450 (NOTEBOOK.md).
_LAGGING_STEPS = 200


def compute_held_out_logits(
    classifier: ImageClassifier, images: BatchSource, ids: Tensor, world: World
) -> HeldOutLogits:
    """Compute the logits of the images with these ids (n,); each rank computes its share.

    The classifier must have no temperature yet.
    """
    logits = _compute_rows(classifier, images, ids, world, classifier, "fitting the temperature")
    return HeldOutLogits(ids, logits, images.labels_of(ids).cpu())


def calibrate_temperature(
    classifier: ImageClassifier, held_out: HeldOutLogits, world: World
) -> Choice[float]:
    """Set the classifier's temperature, fitted on the first rank; every rank has the logits."""
    choice = choose_temperature(held_out.logits, held_out.labels)
    temperature = torch.tensor(choice.value if world.is_main else 0.0, dtype=torch.float64)
    classifier.temperature = world.all_reduce(temperature).item()
    return choice


def fit_detector_on_images(
    classifier: ImageClassifier, images: BatchSource, seen: Tensor, held_out: Tensor, world: World
) -> Choice[OutOfDistributionDetector | None]:
    """Set the classifier's out-of-distribution detector, fitted on images.

    Each rank computes its share, and all use the first rank's result.

    Args:
        seen: Ids (n,) of training images.
        held_out: Ids (n,) of validation images.
    """

    def compute_features(batch: Tensor) -> Tensor:
        try:
            return logits_and_features(classifier.feature_member, batch)[1]
        except ModelError:  # the network does not end in a linear layer
            return torch.zeros(len(batch), 0)

    seen_features, held_out_features = (
        _compute_rows(classifier, images, ids, world, compute_features, "comparing images")
        for ids in (seen, held_out)
    )
    return fit_detector_on_features(classifier, seen_features, held_out_features, world)


def fit_detector_on_features(
    classifier: ImageClassifier, seen: Tensor, held_out: Tensor, world: World
) -> Choice[OutOfDistributionDetector | None]:
    """Set the classifier's out-of-distribution detector, fitted on features (n, D) of every rank.

    Args:
        seen: Features of training images.
        held_out: Features of validation images.
    """
    choice = choose_detector(seen, held_out)
    if choice.value:  # on every rank or on none, but rounding differs between machines
        agreed = replace(choice.value, threshold=world.agree(choice.value.threshold))
        choice = replace(choice, value=agreed)
    classifier.out_of_distribution = choice.value and choice.value.to(classifier.device)
    return choice


def _compute_rows(
    classifier: ImageClassifier,
    images: BatchSource,
    ids: Tensor,
    world: World,
    compute: Callable[[Tensor], Tensor],
    activity: str,
) -> Tensor:
    """Compute a row (D,) per image, a share of them on each rank, and return all, on the CPU."""
    batch_size = evaluation_batch_size(classifier.device, classifier.input_size(images.shape[:2]))
    loader = Loader(images, ids, batch_size, classifier.device, world.rank, world.size)
    batches = world.report_each(loader.in_order(), activity)
    parts = [(batch.ids.cpu(), compute(batch.images).cpu()) for batch in batches]
    width = int(world.agree(parts[0][1].shape[1] if parts else 0))  # rank 0 has the first batch
    rows = torch.zeros(len(ids), width)
    for part_ids, values in parts:
        rows[find_positions(ids, part_ids)] = values
    return world.all_reduce(rows)


def count_recalibrated_steps(config: Config, net: nn.Module) -> float:
    """Return during how many steps statistics are recomputed before each evaluation."""
    if not _find_norms(net):
        return 0
    if config.recalibrate_norm == "auto":
        return 0 if config.freeze or config.norm_statistics == "frozen" else _LAGGING_STEPS
    return math.inf if config.recalibrate_norm == "on" and not config.freeze else 0


@torch.no_grad()
def recalibrate_norms(classifier: Classifier, images: BatchSource, ids: Tensor) -> None:
    """Set every batch norm's statistics to their mean over batches of training images.

    Uses the first 1,024 of the ids (n,), on every rank the same. See Wu and Johnson,
    arXiv:2105.07576, section 3.
    """
    net = classifier.net.eval()  # dropout and the like stay off
    norms = _find_norms(net)
    if not norms or len(ids) == 0:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # to torch, this means the plain mean over batches
        norm.train()
    # All batches have the same weight, so a smaller last one is left out.
    sample = ids[: min(RECALIBRATION_IMAGES, len(ids) // BATCH_SIZE * BATCH_SIZE or len(ids))]
    for batch in Loader(images, sample, BATCH_SIZE, classifier.device).in_order():
        with autocast(classifier.precision, classifier.device):
            net(classifier.normalization.apply(batch.images))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    net.eval()


def _find_norms(net: nn.Module) -> list[_BatchNorm]:
    """Return the batch norms of a network that keep statistics."""
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.track_running_stats]
