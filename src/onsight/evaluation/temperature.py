"""Temperature scaling: one number that makes confidence match accuracy.

Guo et al., arXiv:1706.04599, section 4.2. It changes no prediction, only how sure it is.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.choice import Choice
from onsight.words import plural

_LEAST_IMAGES = 50
_LOWEST, _HIGHEST = 0.1, 10.0  # outside, the images do not determine it
_DIGITS = 4  # more would be rounding errors, which differ between machines


def choose_temperature(logits: Tensor, labels: Tensor) -> Choice[float]:
    """What to divide logits (n, K) by for the least cross-entropy against labels (n,).

    1, with the reason, where these images do not show that another is better.
    """
    count = len(labels)
    images = plural(count, "validation image")
    if count < _LEAST_IMAGES:
        return Choice(1.0, f"{images}, and fitting a temperature takes {_LEAST_IMAGES}")
    if not logits.isfinite().all():
        return Choice(1.0, "not every output of the network is finite")
    if (logits.argmax(dim=1) == labels).all():
        return Choice(1.0, f"all {images} are right, so they do not say how sure it should be")
    temperature = round(fit_temperature(logits, labels), _DIGITS)
    if not _LOWEST < temperature < _HIGHEST or not _helps_unseen(logits, labels):
        return Choice(1.0, f"no other temperature is shown to suit the {images} better")
    return Choice(temperature, f"fitted on {images}")


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature from 0.1 to 10 with the least mean cross-entropy.

    In its inverse the loss is convex, so Newton's method inside a bracket finds the minimum.
    """
    logits = logits.double()
    low, high, inverse = 1 / _HIGHEST, 1 / _LOWEST, 1.0
    while high - low > 1e-9:
        slope, curvature = _derivatives(logits, labels, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = slope / curvature if curvature > 0 else math.inf
        nearer = inverse - step
        if abs(step) < 1e-9:
            break
        inverse = nearer if low < nearer < high else math.sqrt(low * high)
    return 1 / inverse


def _derivatives(logits: Tensor, labels: Tensor, inverse: float) -> tuple[float, float]:
    """The first and second derivative of the mean loss with respect to the inverse temperature."""
    probabilities = (logits * inverse).softmax(dim=1)
    expected = (probabilities * logits).sum(dim=1)
    spread = (probabilities * (logits - expected.unsqueeze(1)).square()).sum(dim=1)
    observed = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    return (expected - observed).mean().item(), spread.mean().item()


def _helps_unseen(logits: Tensor, labels: Tensor) -> bool:
    """Whether a temperature fitted on either half of the images lowers the loss of the other."""
    halves = [(logits[start::2].double(), labels[start::2]) for start in (0, 1)]
    fitted = [fit_temperature(*half) for half in reversed(halves)]
    before = [F.cross_entropy(some, right, reduction="sum") for some, right in halves]
    after = [
        F.cross_entropy(some / temperature, right, reduction="sum")
        for (some, right), temperature in zip(halves, fitted, strict=True)
    ]
    return bool(torch.stack(after).sum() < torch.stack(before).sum())
