"""Where a network's numbers lie in memory: channels last where it can, else as it was written."""

from typing import Any

import torch
from torch import Tensor, nn


def lay_out(net: nn.Module, shape: tuple[int, int, int], device: torch.device) -> nn.Module:
    """Move a net to a device, channels last if a trial with pictures (C, H, W) passes so.

    Nets that reshape by view(), as tutorials do, need their pictures contiguous: they get
    them so. Leaves the random state as it was.
    """
    channels, height, width = shape
    net = net.to(device).to(memory_format=torch.channels_last)
    # Permuted as the views permute: with one channel, torch takes both layouts for either.
    if not _passes(net, torch.zeros(2, height, width, channels, device=device).permute(0, 3, 1, 2)):
        net = net.to(memory_format=torch.contiguous_format)
        net.register_forward_pre_hook(_make_contiguous)
    return net


def _passes(net: nn.Module, pictures: Tensor) -> bool:
    modes = [(module, module.training) for module in net.modules()]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            net.eval()(pictures)
    except RuntimeError:
        return False
    finally:
        for module, training in modes:
            module.training = training
    return True


def _make_contiguous(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (arguments[0].clone(memory_format=torch.contiguous_format), *arguments[1:])
