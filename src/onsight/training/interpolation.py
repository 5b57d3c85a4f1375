"""Networks between the start of a fine-tuning and its end: their weights averaged."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from onsight.training.checkpoint import load_weights, save_weights

SHARES = (0.25, 0.5, 0.75)  # of the way from the start to the end


class Blends:
    """The networks on the line from a fine-tuning's start to its end (arXiv:2109.01903).

    path: where the weights of the start are kept.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_start(self, net: nn.Module) -> None:
        """Write the weights from which a network begins to learn."""
        save_weights(self.path, net)

    @property
    def are_open(self) -> bool:
        """Whether a start was kept."""
        return self.path.exists()

    def of(self, net: nn.Module) -> Iterator[float]:
        """Give a network the weights of each blend in turn, then its own again.

        Yields the share of the way that the blend is from the start to the network as given.
        """
        end = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        load_weights(self.path, net)
        start = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        try:
            for share in SHARES:
                net.load_state_dict(blend(start, end, share))
                yield share
        finally:
            net.load_state_dict(end)


def blend(start: dict[str, Tensor], end: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Weights at a share of the way from start to end; counters are those of the end."""
    return {
        name: torch.lerp(start[name], last, share) if last.is_floating_point() else last
        for name, last in end.items()
    }
