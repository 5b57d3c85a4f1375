"""The threshold above which an image is out of distribution: setting it, and testing it.

B batch, D features, K classes, m held-out images, n training images.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.choice import Choice
from onsight.data.loader import Batch
from onsight.evaluation.metrics import proportion_with_interval
from onsight.evaluation.predictions import PredictionTable, evaluate_batches
from onsight.evaluation.results import OutOfDistributionResult
from onsight.features.feature_pass import logits_and_features
from onsight.models.classifier import Classifier
from onsight.models.out_of_distribution import (
    OutOfDistributionDetector,
    is_out_of_distribution,
    score,
)
from onsight.text import plural

FALSE_ALARMS = 0.01  # target proportion of images from the training distribution that are flagged
_MIN_IMAGES = 20


def choose_detector(seen: Tensor, held_out: Tensor) -> Choice[OutOfDistributionDetector | None]:
    """Return a detector with its threshold, or None with the reason.

    seen: float32 (n, D), features of training images; held_out: (m, D), of other images. D is 0
    for a network without features.
    """
    count = len(held_out)
    images = plural(count, "validation image")
    if count < _MIN_IMAGES or len(seen) < _MIN_IMAGES:
        return Choice(None, f"{images}, and setting a threshold takes {_MIN_IMAGES}")
    if not seen.shape[1]:
        return Choice(None, "the network does not end in a linear layer")
    if not (seen.isfinite().all() and held_out.isfinite().all()):
        return Choice(None, "not every output of the network is finite")
    detector = OutOfDistributionDetector(F.normalize(seen, dim=1).half(), math.inf, 0.0, 0)
    scores = score(held_out, detector.bank)
    return Choice(set_threshold(detector, scores), f"set on {images}")


def set_threshold(detector: OutOfDistributionDetector, scores: Tensor) -> OutOfDistributionDetector:
    """Return the detector with a threshold that at most 1% of new images like these exceed.

    It is the score of rank 0.99 (m + 1) among scores (m,), which a new image exceeds with a
    probability of at most 1% (Vovk et al., Algorithmic Learning in a Random World, 2005). For m
    below 99 it is the largest, which is exceeded with a probability of at most 1 / (m + 1).
    """
    count = len(scores)
    allowed = max(FALSE_ALARMS, 1 / (count + 1))
    rank = min(count, math.ceil((1 - allowed) * (count + 1) - 1e-9))
    threshold = float(scores.kthvalue(rank).values)
    return replace(detector, threshold=threshold, false_alarm_rate=allowed, images=count)


def with_scores(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (B, K) and scores (B,) of uint8 images (B, H, W, C); NaN without detector."""
    if classifier.out_of_distribution is None:
        logits = classifier(images)
        return logits, compute_scores(classifier, logits)
    logits, features = logits_and_features(classifier, images)
    return logits, compute_scores(classifier, features)


def compute_scores(classifier: Classifier, features: Tensor) -> Tensor:
    """Return scores (B,) of images by their features (B, D); NaN without detector."""
    detector = classifier.out_of_distribution
    if detector is None:
        return features.new_full((len(features),), math.nan)
    return score(features, detector.bank)


def evaluate_with_scores(classifier: Classifier, batches: Iterable[Batch]) -> PredictionTable:
    """Predict the images of all batches and compute their out-of-distribution scores."""
    scores: list[Tensor] = []

    def forward(images: Tensor) -> Tensor:
        logits, batch_scores = with_scores(classifier, images)
        scores.append(batch_scores.cpu())
        return logits

    table = evaluate_batches(forward, batches, classifier.temperature)
    return replace(table, out_of_distribution=torch.cat(scores).numpy()) if scores else table


def pool_folds(
    detector: OutOfDistributionDetector, scores: NDArray[np.float32], folds: NDArray[np.int8]
) -> tuple[OutOfDistributionDetector, NDArray[np.bool_]]:
    """Set the threshold on the images of all folds, and test it fold by fold.

    scores: (n,), by the models that were not trained on these images; folds: (n,). The second
    result is True for images above the threshold that the other folds set.
    """
    flagged = np.zeros(len(scores), np.bool_)
    for fold in np.unique(folds):
        others = set_threshold(detector, torch.from_numpy(scores[folds != fold]))
        flagged[folds == fold] = is_out_of_distribution(scores[folds == fold], others)
    return set_threshold(detector, torch.from_numpy(scores)), flagged


def detector_results(
    detector: OutOfDistributionDetector, flagged: NDArray[np.bool_]
) -> OutOfDistributionResult:
    """Return the threshold and the proportion of flagged images, none of which was used to set it.

    flagged: bool (n,).
    """
    proportion = proportion_with_interval("flagged", int(flagged.sum()), len(flagged))
    result: dict[str, Any] = {"threshold": detector.threshold, "share": detector.false_alarm_rate}
    result |= {"held_out": detector.images, "images": len(flagged), **proportion}
    return cast(OutOfDistributionResult, result)
