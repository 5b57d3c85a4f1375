"""A network's forward pass through torch.compile, for batches of one shape."""

import torch
from torch import Tensor, nn


class Compiled:
    """Compiles on its first batch; batches of another shape use the network as it is.

    On CUDA the passes are also replayed as graphs, which spares the host most of its work.
    """

    def __init__(self, net: nn.Module, device: torch.device) -> None:
        self.net = net
        self.fast = torch.compile(
            net, dynamic=False, mode="reduce-overhead" if device.type == "cuda" else "default"
        )
        self.shape: torch.Size | None = None

    def __call__(self, inputs: Tensor) -> Tensor:
        """The logits (B, K) of inputs (B, C, H, W)."""
        self.shape = self.shape or inputs.shape
        logits: Tensor = (self.fast if inputs.shape == self.shape else self.net)(inputs)
        return logits
