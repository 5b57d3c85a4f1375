"""Sets the threshold above which images are unlike anything seen in training, and checks it.

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
from onsight.evaluation.metrics import share
from onsight.evaluation.per_image import PerImageResults, evaluate_batches
from onsight.evaluation.results import OutOfDistributionResult
from onsight.features.feature_pass import with_features
from onsight.models.classifier import Classifier
from onsight.models.out_of_distribution import (
    OutOfDistributionDetector,
    is_out_of_distribution,
    score,
)
from onsight.words import plural

SHARE = 0.01  # of new images like those of training, which are flagged nonetheless
_LEAST_IMAGES = 20


def choose_detector(seen: Tensor, held_out: Tensor) -> Choice[OutOfDistributionDetector | None]:
    """What tells unlike images, or None with the reason.

    seen: float32 (n, D), features of training images; held_out: (m, D), of others. D is 0 for a
    network without features.
    """
    count = len(held_out)
    images = plural(count, "validation image")
    if count < _LEAST_IMAGES or len(seen) < _LEAST_IMAGES:
        return Choice(None, f"{images}, and setting a threshold takes {_LEAST_IMAGES}")
    if not seen.shape[1]:
        return Choice(None, "the network does not end in a linear layer")
    if not (seen.isfinite().all() and held_out.isfinite().all()):
        return Choice(None, "not every output of the network is finite")
    stored = OutOfDistributionDetector(F.normalize(seen, dim=1).half(), math.inf, 0.0, 0)
    return Choice(with_threshold(stored, score(held_out, stored.bank)), f"set on {images}")


def with_threshold(stored: OutOfDistributionDetector, scores: Tensor) -> OutOfDistributionDetector:
    """The same with the threshold that at most 1% of new images like these are above.

    Of scores (m,) it is the one of rank 0.99 (m + 1), which a new one exceeds with a probability
    of at most 1% (Vovk et al., Algorithmic Learning in a Random World, 2005); of fewer than 99, it
    is the largest, which one in m + 1 exceeds.
    """
    count = len(scores)
    allowed = max(SHARE, 1 / (count + 1))
    rank = min(count, math.ceil((1 - allowed) * (count + 1) - 1e-9))
    threshold = float(scores.kthvalue(rank).values)
    return replace(stored, threshold=threshold, share=allowed, images=count)


def with_scores(classifier: Classifier, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, K) and scores (B,) of uint8 images (B, H, W, C); NaN if the model has none."""
    if classifier.out_of_distribution is None:
        logits = classifier(images)
        return logits, scores_of(classifier, logits)
    logits, features = with_features(classifier, images)
    return logits, scores_of(classifier, features)


def scores_of(classifier: Classifier, features: Tensor) -> Tensor:
    """Scores (B,) of images by their features (B, D); NaN if the model has none."""
    stored = classifier.out_of_distribution
    if stored is None:
        return features.new_full((len(features),), math.nan)
    return score(features, stored.bank)


def evaluate_scored(classifier: Classifier, batches: Iterable[Batch]) -> PerImageResults:
    """What the classifier predicts for the images of batches, with their scores."""
    scores: list[Tensor] = []

    def forward(images: Tensor) -> Tensor:
        logits, some = with_scores(classifier, images)
        scores.append(some.cpu())
        return logits

    per_image = evaluate_batches(forward, batches, classifier.temperature)
    return (
        replace(per_image, out_of_distribution=torch.cat(scores).numpy()) if scores else per_image
    )


def pooled_over_folds(
    stored: OutOfDistributionDetector, scores: NDArray[np.float32], folds: NDArray[np.int8]
) -> tuple[OutOfDistributionDetector, NDArray[np.bool_]]:
    """The threshold that all images set, and which of them that of the other folds flags.

    scores: (n,) by the models that have not seen them; folds: (n,) theirs.
    """
    flagged = np.zeros(len(scores), np.bool_)
    for fold in np.unique(folds):
        others = with_threshold(stored, torch.from_numpy(scores[folds != fold]))
        flagged[folds == fold] = is_out_of_distribution(scores[folds == fold], others)
    return with_threshold(stored, torch.from_numpy(scores)), flagged


def out_of_distribution_result(
    stored: OutOfDistributionDetector, flagged: NDArray[np.bool_]
) -> OutOfDistributionResult:
    """The threshold, and the share of images flagged, bool (n,), none of which has set it."""
    shares = share("flagged", int(flagged.sum()), len(flagged))
    result: dict[str, Any] = {"threshold": stored.threshold, "share": stored.share}
    result |= {"held_out": stored.images, "images": len(flagged), **shares}
    return cast(OutOfDistributionResult, result)
