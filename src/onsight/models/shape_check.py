"""One trial forward that shows whether a net suits the pictures and the classes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.words import plural


def check_output(net: nn.Module, shape: tuple[int, int, int], classes: int, name: str) -> None:
    """Pass two black pictures (C, H, W) through a net: it must give logits (2, K).

    Leaves the net, its modes and the random state as they were. Raises ModelError.
    """
    channels, height, width = shape
    try:
        output = _trial_forward(net, shape)
    except Exception as error:  # a net may fail in any way; all mean the same here
        raise ModelError(
            f"'{name}' cannot take pictures of {height}x{width} with "
            f"{plural(channels, 'channel')}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(output, Tensor):
        raise ModelError(f"'{name}' gives a {type(output).__name__}, a tensor (B, K) is needed")
    if output.dim() != 2 or len(output) != 2:
        raise ModelError(
            f"'{name}' turns 2 pictures into a tensor of shape {tuple(output.shape)}, "
            f"(2, {classes}) is needed"
        )
    if output.shape[1] != classes:
        raise ModelError(
            f"'{name}' gives {output.shape[1]} numbers a picture, the data has {classes} classes"
        )


def _trial_forward(net: nn.Module, shape: tuple[int, int, int]) -> object:
    anchor = next(net.parameters(), torch.empty(0))
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _evaluation_mode(net):
        return net(torch.zeros(2, *shape, device=anchor.device))


@contextmanager
def _evaluation_mode(net: nn.Module) -> Iterator[None]:
    # Each module's own mode is put back: a net may hold parts in evaluation on purpose.
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
