"""Interpolates between the weights at the start and at the end of fine-tuning."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from onsight.training.checkpoint import load_weights

FRACTIONS = (0.25, 0.5, 0.75)  # from the start (0) to the end (1)


def load_interpolated(net: nn.Module, start: Path, fractions: Sequence[float]) -> Iterator[float]:
    """Load weights between the first and the last ones of fine-tuning (arXiv:2109.01903).

    Args:
        net: The network with its last weights, which it has again in the end.
        start: The file with its first weights.
        fractions: Of the way from the first to the last weights.

    Yields:
        The fraction whose weights the network now has.
    """
    last_weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    load_weights(start, net)
    first_weights = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    try:
        for fraction in fractions:
            net.load_state_dict(interpolate(first_weights, last_weights, fraction))
            yield fraction
    finally:
        net.load_state_dict(last_weights)


def interpolate(
    start: dict[str, Tensor], end: dict[str, Tensor], fraction: float
) -> dict[str, Tensor]:
    """Return the weights at a fraction between two state dicts; integers are those of the end."""
    return {
        name: torch.lerp(start[name], last, fraction) if last.is_floating_point() else last
        for name, last in end.items()
    }
