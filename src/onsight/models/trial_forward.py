"""A trial forward pass, to check that a network suits the images and classes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from onsight.errors import ModelError


def check_output(net: nn.Module, shape: tuple[int, int, int], classes: int, name: str) -> None:
    """Raise ModelError unless a net maps two black images (C, H, W) to logits (2, K)."""
    channels, height, width = shape
    device = next(net.parameters(), torch.empty(0)).device
    try:
        output = trial_forward(net, torch.zeros(2, *shape, device=device))
    except Exception as error:  # a net can fail in any way; all mean the same here
        raise ModelError(
            f"'{name}' cannot take images of {height}x{width} with {channels} channel(s): "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise ModelError(
            f"'{name}' returns a {type(output).__name__}; it must return a tensor (B, K)"
        )
    if output.dim() != 2 or len(output) != 2:
        raise ModelError(
            f"'{name}' turns 2 images into a tensor of shape {tuple(output.shape)}; "
            f"it must be (2, {classes})"
        )
    if output.shape[1] != classes:
        raise ModelError(
            f"'{name}' returns {output.shape[1]} numbers per image, "
            f"but the data has {classes} classes"
        )


def trial_forward(net: nn.Module, images: Tensor) -> object:
    """What a net returns for images (B, C, H, W) in evaluation mode.

    The net, the mode of each of its modules and the random state stay as they were.
    """
    with left_as_it_was(net), torch.no_grad():
        return net.eval()(images)


@contextmanager
def left_as_it_was(net: nn.Module) -> Iterator[None]:
    """Restores the mode of each of a net's modules and the random state after a block."""
    # Each module's own mode is restored: a net may keep parts in evaluation mode on purpose.
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, training in modes:
            module.training = training
