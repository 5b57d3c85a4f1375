"""Sets and tests the threshold above which an image is out of distribution.

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
from onsight.models.classifier import ImageClassifier
from onsight.models.out_of_distribution import (
    OutOfDistributionDetector,
    is_out_of_distribution,
    score,
)
from onsight.text import plural

FALSE_ALARMS = 0.01  # target proportion of images from the training distribution that are flagged
_MIN_IMAGES = 20  # training images, and held-out images


def choose_detector(train: Tensor, held_out: Tensor) -> Choice[OutOfDistributionDetector | None]:
    """Return a detector with a threshold, or None with the reason.

    Args:
        train: Features of training images, float32 (n, D). D is 0 if the network has no features.
        held_out: Features of other images, float32 (m, D).
    """
    count = len(held_out)
    images = plural(count, "validation image")
    if count < _MIN_IMAGES or len(train) < _MIN_IMAGES:
        return Choice(None, f"{images}, and setting a threshold takes {_MIN_IMAGES}")
    if not train.shape[1]:
        return Choice(None, "the network does not end in a linear layer")
    if not (train.isfinite().all() and held_out.isfinite().all()):
        return Choice(None, "not every output of the network is finite")
    detector = OutOfDistributionDetector(F.normalize(train, dim=1).half(), math.inf, 0.0, 0)
    scores = score(held_out, detector.bank)
    return Choice(set_threshold(detector, scores), f"set on {images}")


def set_threshold(detector: OutOfDistributionDetector, scores: Tensor) -> OutOfDistributionDetector:
    """Return the detector with a threshold that at most 1% of similar images exceed.

    The threshold is the score of rank 0.99 (m + 1) among those of held-out images, (m,), which the
    score of a new image exceeds with a probability of at most 1% (Vovk et al., Algorithmic Learning
    in a Random World, 2005). With fewer than 99 scores, it is the largest one, and the probability
    is at most 1 / (m + 1).
    """
    count = len(scores)
    rate = max(FALSE_ALARMS, 1 / (count + 1))
    rank = min(count, math.ceil((1 - rate) * (count + 1) - 1e-9))
    threshold = float(scores.kthvalue(rank).values)
    return replace(detector, threshold=threshold, false_alarm_rate=rate, images=count)


def logits_and_scores(classifier: ImageClassifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (B, K) and out-of-distribution scores (B,) of uint8 images (B, H, W, C).

    Scores are NaN if the classifier has no detector.
    """
    if classifier.out_of_distribution is None:
        logits = classifier(images)
        return logits, compute_scores(classifier, logits)
    logits, features = logits_and_features(classifier, images)
    return logits, compute_scores(classifier, features)


def compute_scores(classifier: ImageClassifier, features: Tensor) -> Tensor:
    """Return the scores (B,) of images with features (B, D), or NaN if there is no detector."""
    detector = classifier.out_of_distribution
    if detector is None:
        return features.new_full((len(features),), math.nan)
    return score(features, detector.bank)


def evaluate_with_scores(classifier: ImageClassifier, batches: Iterable[Batch]) -> PredictionTable:
    """Predict the images of all batches and compute their out-of-distribution scores."""
    scores: list[Tensor] = []

    def forward(images: Tensor) -> Tensor:
        logits, batch_scores = logits_and_scores(classifier, images)
        scores.append(batch_scores.cpu())
        return logits

    table = evaluate_batches(forward, batches, classifier.temperature)
    return replace(table, out_of_distribution=torch.cat(scores).numpy()) if scores else table


def pool_folds(
    detector: OutOfDistributionDetector, scores: NDArray[np.float32], folds: NDArray[np.int8]
) -> tuple[OutOfDistributionDetector, NDArray[np.bool_]]:
    """Set the threshold on the images of all folds, and test it on each fold.

    Args:
        scores: The score of each image by a model that was not trained on it, (n,).
        folds: The fold of each image, (n,).

    Returns:
        The detector, and flags (n,) that are True for images above the threshold that was set on
        the other folds.
    """
    flagged = np.zeros(len(scores), np.bool_)
    for fold in np.unique(folds):
        others = set_threshold(detector, torch.from_numpy(scores[folds != fold]))
        flagged[folds == fold] = is_out_of_distribution(scores[folds == fold], others)
    return set_threshold(detector, torch.from_numpy(scores)), flagged


def detector_results(
    detector: OutOfDistributionDetector, flagged: NDArray[np.bool_]
) -> OutOfDistributionResult:
    """Return the threshold and the proportion of flagged images.

    Args:
        flagged: True for flagged images, (n,). The threshold was not set on any of them.
    """
    proportion = proportion_with_interval("flagged", int(flagged.sum()), len(flagged))
    result: dict[str, Any] = {"threshold": detector.threshold, "share": detector.false_alarm_rate}
    result |= {"held_out": detector.images, "images": len(flagged), **proportion}
    return cast(OutOfDistributionResult, result)
