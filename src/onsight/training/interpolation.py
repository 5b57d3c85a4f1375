"""Networks between the start of a fine-tuning and its end: their weights averaged."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from onsight.training.checkpoint import load_weights, save_weights

SHARES = (0.25, 0.5, 0.75)  # of the way from the start to the end


class Interpolation:
    """The networks on the line from a fine-tuning's start to its end (arXiv:2109.01903).

    path: where the weights of the start are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_start(self, net: nn.Module) -> None:
        """Write the weights from which a network begins to learn."""
        save_weights(self.path, net)

    @property
    def is_open(self) -> bool:
        """Whether a start was kept."""
        return self.path.exists()

    def steps(self, net: nn.Module, shares: Sequence[float]) -> Iterator[float]:
        """Give a network the weights at each share of the way in turn, then its own again."""
        end = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        load_weights(self.path, net)
        start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        try:
            for share in shares:
                net.load_state_dict(interpolate(start, end, share))
                yield share
        finally:
            net.load_state_dict(end)


def interpolate(
    start: dict[str, Tensor], end: dict[str, Tensor], share: float
) -> dict[str, Tensor]:
    """Weights at a share of the way from start to end; counters are those of the end."""
    return {
        name: torch.lerp(start[name], last, share) if last.is_floating_point() else last
        for name, last in end.items()
    }
