"""How much work a run is, estimated from its network: the same answer on every call."""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from onsight_explain.threads import usable_cores

# Rough rates, good enough to tell seconds from minutes: measuring would not be repeatable.
_FLOPS_PER_CORE = 5e10
_FLOPS_PER_ACCELERATOR = 1e13
_STEP_SECONDS = 1e-3


def expected_seconds(
    net: nn.Module, shape: tuple[int, int, int], images: int, steps: int, device: torch.device
) -> float:
    """Roughly the seconds of the given number of training steps and images (C, H, W).

    A step costs three forward passes (Kaplan et al., arXiv:2001.08361) and some overhead.
    """
    rate = _FLOPS_PER_CORE * usable_cores() if device.type == "cpu" else _FLOPS_PER_ACCELERATOR
    return 3 * forward_flops(net, shape, device) * images / rate + steps * _STEP_SECONDS


def forward_flops(net: nn.Module, shape: tuple[int, int, int], device: torch.device) -> int:
    """Floating-point operations of one forward pass over an image (C, H, W)."""
    modes = [(module, module.training) for module in net.modules()]
    image = torch.zeros(1, *shape, device=device)
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), counter:
        net.eval()(image)
    for module, training in modes:
        module.training = training
    return int(counter.get_total_flops())
