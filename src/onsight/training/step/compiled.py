"""A network's forward pass through torch.compile, for batches of one size."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Forward = Callable[[Tensor], Tensor]  # inputs (B, C, H, W) to logits (B, K)


class Compiled:
    """Compiles for the size of a full batch, or of its largest part; others use the network as is.

    net: wrapped in torch's DistributedDataParallel already, if several ranks train it, as torch
    asks for; images: those of a full batch on this rank; replays: replay the forward and the
    backward pass of whole batches as CUDA graphs, which spares the host most of its work.
    """

    def __init__(self, net: nn.Module, images: int, replays: bool) -> None:
        self.net = net
        self.images = images
        self.whole: Forward = torch.compile(
            net, dynamic=False, mode="reduce-overhead" if replays else "default"
        )
        # No graphs: a gradient may lie in a graph's own memory, which the next part would overwrite
        # before it is added.
        self.part: Forward = torch.compile(net, dynamic=False, mode="default")

    def choose(self, images: int, parts: int) -> Forward:
        """The forward pass for so many images; parts: those that a batch is computed in."""
        if images != math.ceil(self.images / parts):
            return self.net
        return self.whole if parts == 1 else self.part
