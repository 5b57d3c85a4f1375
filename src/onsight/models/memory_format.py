"""Where a network's numbers lie in memory: channels last where it can, else as it was written."""

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
    """Move a net to a device, channels last if a trial with pictures (C, H, W) passes so.

    memory_format: contiguous tries nothing; channels_last raises ModelError where auto would
    fall back.

    Nets that reshape by view(), as tutorials do, need their pictures contiguous: they get
    them so. Leaves the random state as it was.
    """
    channels, height, width = shape
    if memory_format == "contiguous":
        return _contiguous(net.to(device))
    net = net.to(device).to(memory_format=torch.channels_last)
    # Permuted as the views permute: with one channel, torch takes both layouts for either.
    if _passes(net, torch.zeros(2, height, width, channels, device=device).permute(0, 3, 1, 2)):
        return net
    if memory_format == "channels_last":
        raise ModelError(
            "this network reshapes by view(), which needs contiguous pictures: "
            "leave out --memory-format channels_last, or use reshape() or flatten() in it"
        )
    return _contiguous(net.to(memory_format=torch.contiguous_format))


def _contiguous(net: nn.Module) -> nn.Module:
    net.register_forward_pre_hook(_make_contiguous)
    return net


def _passes(net: nn.Module, pictures: Tensor) -> bool:
    try:
        trial_forward(net, pictures)
    except RuntimeError:
        return False
    return True


def _make_contiguous(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].clone(memory_format=torch.contiguous_format), *arguments[1:])
