"""Chooses how much each trained network counts in a blend.

K classes, M members, n images.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

LEAST_WEIGHT = 0.05  # of a member; below it, a member costs time and changes little
_STEPS = 100  # between equal weights and those of the lowest loss
_MAX_ROUNDS, _MAX_GAP = 1000, 1e-6  # the gap is of the loss, in nats
_ROUNDING = 1e-9  # equal members have equal losses, apart from rounding
_LOWEST = torch.finfo(torch.float32).min  # stands for the logarithm of 0


def choose_weights(log_probabilities: Mapping[str, Tensor], labels: Tensor) -> dict[str, float]:
    """Return the weights with which members are blended.

    The weights of the lowest log loss decide which members help. Those share as equally as the
    images allow: the loss is within one standard error of the lowest, and no higher than that of
    the best member. On images of another kind than these, equal weights lose less (NOTEBOOK.md).

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
    kept, weights = _fit_without_small_ones(losses)
    weights = _even_out(losses[kept], weights, losses.mean(dim=1).min().item())
    return {names[row]: weight for row, weight in zip(kept.tolist(), weights.tolist(), strict=True)}


def _losses(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each image, float64 (n,), finite even if a probability is 0 or NaN."""
    found = log_probabilities.double().gather(1, labels.unsqueeze(1)).squeeze(1)
    return -found.nan_to_num(nan=_LOWEST).clamp(min=_LOWEST)


def _blend_losses(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the loss of each image (n,) from the weights (M,) and losses (M, n) of members."""
    return -(weights.log().unsqueeze(1) - losses).logsumexp(dim=0)


def _even_out(losses: Tensor, fitted: Tensor, best_loss: float) -> Tensor:
    """Move the fitted weights (M,) towards equal ones, as far as losses (M, n) hardly rise."""
    lowest = _blend_losses(losses, fitted)
    equal = torch.full_like(fitted, 1 / len(fitted))
    for step in range(_STEPS):
        weights = equal.lerp(fitted, step / _STEPS)
        rises = _blend_losses(losses, weights) - lowest
        error = rises.std(correction=0) / len(rises) ** 0.5
        is_no_worse = lowest.mean() + rises.mean() <= best_loss + _ROUNDING
        if rises.mean() <= error + _ROUNDING and is_no_worse:
            return weights
    return fitted


def _fit_without_small_ones(losses: Tensor) -> tuple[Tensor, Tensor]:
    """Fit weights, drop the member with the smallest one if it is below 0.05, and fit again.

    Returns:
        The rows that are kept, and their weights.
    """
    kept = torch.arange(len(losses))
    while (fitted := _fit(losses[kept])).min() < LEAST_WEIGHT:
        smallest = int(fitted.argmin())
        kept = torch.cat([kept[:smallest], kept[smallest + 1 :]])
    return kept, fitted


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
