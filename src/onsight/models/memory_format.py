"""The memory format of a network and its input: channels last if the network takes it."""

from typing import Any

import torch
from torch import Tensor, nn

from onsight.errors import ModelError
from onsight.models.trial_forward import trial_forward


def set_memory_format(
    net: nn.Module,
    shape: tuple[int, int, int],
    device: torch.device,
    memory_format: str = "auto",
) -> nn.Module:
    """Move a net to a device, channels last if a trial forward of images (C, H, W) passes.

    Nets that reshape with view(), as tutorials do, need contiguous images, and get them.
    memory_format: contiguous skips the trial; channels_last raises ModelError if the trial
    fails. The random state stays as it was.
    """
    channels, height, width = shape
    if memory_format == "contiguous":
        return _contiguous(net.to(device))
    net = net.to(device).to(memory_format=torch.channels_last)
    # Permuted as normalization does: with one channel, torch takes each layout for the other.
    if _passes(net, torch.zeros(2, height, width, channels, device=device).permute(0, 3, 1, 2)):
        return net
    if memory_format == "channels_last":
        raise ModelError(
            "this network reshapes with view(), which needs contiguous images: "
            "drop --memory-format channels_last, or use reshape() or flatten() in the network"
        )
    return _contiguous(net.to(memory_format=torch.contiguous_format))


def _contiguous(net: nn.Module) -> nn.Module:
    net.register_forward_pre_hook(_make_contiguous)
    return net


def _passes(net: nn.Module, images: Tensor) -> bool:
    try:
        trial_forward(net, images)
    except RuntimeError:
        return False
    return True


def _make_contiguous(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].clone(memory_format=torch.contiguous_format), *arguments[1:])
