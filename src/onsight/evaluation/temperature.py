"""Temperature scaling, which makes confidence match accuracy without changing predictions.

Guo et al., arXiv:1706.04599, section 4.2.

K classes, n images.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.choice import Choice
from onsight.text import plural

_MIN_IMAGES = 50
_LOWEST, _HIGHEST = 0.1, 10.0  # the images do not determine a temperature outside this range
_DIGITS = 4  # later digits are rounding errors, which differ between machines


def choose_temperature(logits: Tensor, labels: Tensor) -> Choice[float]:
    """Fit the temperature to divide logits (n, K) by to labels (n,).

    It is 1 unless another temperature lowers the loss of images that it was not fitted on.
    """
    count = len(labels)
    images = plural(count, "validation image")
    if count < _MIN_IMAGES:
        return Choice(1.0, f"{images}, and fitting a temperature takes {_MIN_IMAGES}")
    if not logits.isfinite().all():
        return Choice(1.0, "not every output of the network is finite")
    if (logits.argmax(dim=1) == labels).all():
        return Choice(1.0, f"all {images} are correct, which leaves the confidence undetermined")
    temperature = round(fit_temperature(logits, labels), _DIGITS)
    if not _LOWEST < temperature < _HIGHEST or not _lowers_held_out_loss(logits, labels):
        return Choice(1.0, f"it did not help on {images}")
    return Choice(temperature, f"fitted on {images}")


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Find the temperature from 0.1 to 10 with the lowest loss of logits (n, K) for labels (n,).

    The mean cross-entropy is convex in the inverse temperature, so Newton's method within a bracket
    converges.
    """
    logits = logits.double()
    low, high, inverse = 1 / _HIGHEST, 1 / _LOWEST, 1.0
    while high - low > 1e-9:
        slope, curvature = _derivatives(logits, labels, inverse)
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = slope / curvature if curvature > 0 else math.inf
        newton = inverse - step
        if abs(step) < 1e-9:
            break
        inverse = newton if low < newton < high else math.sqrt(low * high)
    return 1 / inverse


def _derivatives(logits: Tensor, labels: Tensor, inverse: float) -> tuple[float, float]:
    """Return the first two derivatives of the mean loss by the inverse temperature."""
    probabilities = (logits * inverse).softmax(dim=1)
    expected = (probabilities * logits).sum(dim=1)
    spread = (probabilities * (logits - expected.unsqueeze(1)).square()).sum(dim=1)
    observed = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    return (expected - observed).mean().item(), spread.mean().item()


def _lowers_held_out_loss(logits: Tensor, labels: Tensor) -> bool:
    """Return whether temperatures fitted on each half of the images lower the other half's loss."""
    halves = [(logits[start::2].double(), labels[start::2]) for start in (0, 1)]
    temperatures = [fit_temperature(*half) for half in reversed(halves)]
    before = [F.cross_entropy(outputs, targets, reduction="sum") for outputs, targets in halves]
    after = [
        F.cross_entropy(outputs / temperature, targets, reduction="sum")
        for (outputs, targets), temperature in zip(halves, temperatures, strict=True)
    ]
    return bool(torch.stack(after).sum() < torch.stack(before).sum())
