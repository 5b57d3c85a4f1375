"""Chooses how much each trained network counts in a blend.

K classes, M members, n images.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

LEAST_WEIGHT = 0.05  # of a member; below it, a member costs time and changes little
_MANY_IMAGES = 200  # from here on, images determine weights
_MAX_ROUNDS, _MAX_GAP = 1000, 1e-6  # the gap is of the loss, in nats
_LOWEST = torch.finfo(torch.float32).min  # stands for the logarithm of 0


def choose_weights(log_probabilities: Mapping[str, Tensor], labels: Tensor) -> dict[str, float]:
    """Return the weights with which the members' mean probabilities have the lowest log loss.

    With few images, members that are as good as the best one, within the standard error, share
    equally. A blend that is worse than its best member is not kept.

    Args:
        log_probabilities: The logarithms of each member's probabilities (n, K), for images that
            the members were not trained on.
        labels: The classes of the images, (n,).

    Returns:
        A weight of at least 0.05 for each member that helps; they sum to 1. Without images, the
        first member has all the weight.
    """
    names = list(log_probabilities)
    if not len(labels):
        return {names[0]: 1.0}
    losses = torch.stack([_losses(values, labels) for values in log_probabilities.values()])
    means = losses.mean(dim=1)
    best = int(means.argmin())
    if len(labels) < _MANY_IMAGES:
        weights = _share_equally(losses, best)
    else:
        weights = _fit_without_small_ones(losses)
    # Equal members have equal losses, apart from rounding.
    if _blend_loss(losses, weights) > means[best].item() + 1e-9:
        weights = torch.zeros(len(names), dtype=torch.float64)
        weights[best] = 1
    return {name: weight for name, weight in zip(names, weights.tolist(), strict=True) if weight}


def _losses(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each image, float64 (n,), finite even if a probability is 0 or NaN."""
    found = log_probabilities.double().gather(1, labels.unsqueeze(1)).squeeze(1)
    return -found.nan_to_num(nan=_LOWEST).clamp(min=_LOWEST)


def _blend_loss(losses: Tensor, weights: Tensor) -> float:
    """Return the log loss of a blend with weights (M,), from each member's losses (M, n)."""
    return -float((weights.log().unsqueeze(1) - losses).logsumexp(dim=0).mean())


def _share_equally(losses: Tensor, best: int) -> Tensor:
    """Return equal weights for the members whose mean loss is within noise of the best one's."""
    differences = losses - losses[best]
    errors = differences.std(dim=1, correction=0) / losses.shape[1] ** 0.5
    is_as_good: Tensor = differences.mean(dim=1) <= errors
    return is_as_good.double() / is_as_good.sum()


def _fit_without_small_ones(losses: Tensor) -> Tensor:
    """Fit weights, drop the member with the smallest one if it is below 0.05, and fit again."""
    kept = torch.arange(len(losses))
    while (fitted := _fit(losses[kept])).min() < LEAST_WEIGHT:
        smallest = int(fitted.argmin())
        kept = torch.cat([kept[:smallest], kept[smallest + 1 :]])
    return torch.zeros(len(losses), dtype=torch.float64).index_copy(0, kept, fitted)


def _fit(losses: Tensor) -> Tensor:
    """Minimise the loss of the blend, which is convex in the weights, by expectation maximisation.

    The largest gain minus 1 bounds how far the loss is above the minimum.
    """
    probabilities = (losses.min(dim=0).values - losses).exp()  # relative to the best of each image
    weights = torch.full((len(losses),), 1 / len(losses), dtype=torch.float64)
    for _ in range(_MAX_ROUNDS):
        gains = (probabilities / (weights @ probabilities)).mean(dim=1)
        if gains.max() - 1 < _MAX_GAP:
            break
        weights = weights * gains
    return weights / weights.sum()
