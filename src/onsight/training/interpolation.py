"""Interpolates between the weights at the start and at the end of fine-tuning."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from onsight.training.checkpoint import load_weights, save_weights

FRACTIONS = (0.25, 0.5, 0.75)  # from the start (0) to the end (1)


class Interpolation:
    """Linear interpolation between the first and last weights of fine-tuning (arXiv:2109.01903).

    Args:
        path: Where the first weights are stored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def save_start(self, net: nn.Module) -> None:
        """Store the first weights."""
        save_weights(self.path, net)

    @property
    def has_start(self) -> bool:
        """Whether first weights are stored."""
        return self.path.exists()

    def load_each(self, net: nn.Module, fractions: Sequence[float]) -> Iterator[float]:
        """Load the weights at each fraction in turn, and finally the last weights again.

        Yields:
            The fraction whose weights the network now has.
        """
        end = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        load_weights(self.path, net)
        start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        try:
            for fraction in fractions:
                net.load_state_dict(interpolate(start, end, fraction))
                yield fraction
        finally:
            net.load_state_dict(end)


def interpolate(
    start: dict[str, Tensor], end: dict[str, Tensor], fraction: float
) -> dict[str, Tensor]:
    """Return the weights at a fraction between two state dicts; integers are those of the end."""
    return {
        name: torch.lerp(start[name], last, fraction) if last.is_floating_point() else last
        for name, last in end.items()
    }
