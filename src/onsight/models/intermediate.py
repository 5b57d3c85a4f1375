"""A head on the last and intermediate layers of a network of timm.

Their features come from one forward pass, and classify images that differ from those of the
pretraining better than the last layer's alone (Evci et al., "Head2Toe", ICML 2022).

B batch, C channels, H height, W width, D features, K classes.
"""

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

_BLOCKS = 5  # of the last blocks; earlier ones have few channels and added nothing (NOTEBOOK.md)


class IntermediateNet(nn.Module):
    """A network of timm whose head also receives the mean of the outputs of its last blocks.

    Maps float (B, C, H, W) to logits (B, K).

    Args:
        net: The network, which loses its own head.
        last_features: The size of its own features.
        features: The size of all features.
    """

    def __init__(self, net: nn.Module, last_features: int, features: int, classes: int) -> None:
        super().__init__()
        reset_classifier: Any = net.reset_classifier
        reset_classifier(0)
        self.net = net
        self.last_features = last_features
        self.last_layer = nn.Identity()  # receives the features of the last layer
        self.all_layers_head = nn.Linear(features, classes)
        nn.init.zeros_(self.all_layers_head.weight)
        nn.init.zeros_(self.all_layers_head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (B, K) of images (B, C, H, W)."""
        last, *others = compute_layers(self.net, images)
        logits: Tensor = self.all_layers_head(torch.cat([self.last_layer(last), *others], dim=1))
        return logits


def compute_layers(net: nn.Module, images: Tensor) -> list[Tensor]:
    """Return the features of the last layer, then the mean outputs of the last blocks.

    Args:
        net: A network of timm.
        images: (B, C, H, W).

    Returns:
        Features (B, D) of each layer.
    """
    forward: Any = net.forward_intermediates
    head: Any = net.forward_head
    has_extra_blocks = "extra_blocks" in signature(forward).parameters
    options = {"extra_blocks": True} if has_extra_blocks else {}
    blocks: Any = net.blocks if has_extra_blocks else net.feature_info
    final, maps = forward(images, indices=min(_BLOCKS, len(blocks)), **options)
    return [head(final, pre_logits=True), *(values.mean(dim=(2, 3)) for values in maps)]
