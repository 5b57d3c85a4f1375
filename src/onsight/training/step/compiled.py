"""A network's forward pass through torch.compile, for batches of one size."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Compiled:
    """Compiles for the size of a full batch, or of its largest part; others use the network as is.

    pictures: those of a full batch; replays: replay the forward and the backward pass of whole
    batches as CUDA graphs, which spares the host most of its work.
    """

    def __init__(self, net: nn.Module, pictures: int, replays: bool) -> None:
        self.net = net
        self.pictures = pictures
        self.whole = torch.compile(
            net, dynamic=False, mode="reduce-overhead" if replays else "default"
        )
        # No graphs: a gradient may lie in a graph's own memory, which the next part would overwrite
        # before it is added.
        self.part = torch.compile(net, dynamic=False, mode="default")

    def __call__(self, inputs: Tensor, parts: int) -> Tensor:
        """The logits (B, K) of inputs (B, C, H, W); parts: those that a batch is computed in."""
        forward: Callable[[Tensor], Tensor] = self.net
        if len(inputs) == math.ceil(self.pictures / parts):
            forward = self.whole if parts == 1 else self.part
        return forward(inputs)
