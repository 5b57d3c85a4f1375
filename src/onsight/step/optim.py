"""Optimizers by name, and learning rates as functions of the step."""

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from onsight.choice import Choice
from onsight.config import Config
from onsight.errors import ConfigError, did_you_mean
from onsight.models.unsuitable import unsuitable_error

SGD_NAMES = ("sgd", "nesterov")
FUSED_NAMES = (*SGD_NAMES, "adam", "adamw")  # torch's own, which update all tensors at once

_START, _PEAK, _END = 0.04, 0.25, 1e-4  # one-cycle: first factor, position of the peak, last factor


def make_optimizer(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    momentum: float,
    layer_decay: float = 1.0,
) -> Optimizer:
    """Make an optimizer of the trainable parameters, without weight decay for biases and norms.

    Args:
        name: "sgd", "nesterov", "adam" or "adamw", which are torch's, or a name of timm's.
        learning_rate: Of the last layer.
        weight_decay: Of all other parameters.
        momentum: Of optimizers that have it.
        layer_decay: The learning rate of each layer, divided by that of the next: below 1, layers
            near the input learn more slowly (Clark et al., arXiv:2003.10555).

    Raises:
        ConfigError: If there is no such optimizer, or it needs something that is missing.
        ModelError: If there is nothing to train.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise unsuitable_error(model, "training", "it has no trainable parameters")
    if name not in FUSED_NAMES:
        return _timm_optimizer(model, name, learning_rate, weight_decay, momentum, layer_decay)
    if layer_decay < 1:
        from timm.optim import param_groups_layer_decay  # slow: imports torchvision

        groups = param_groups_layer_decay(model, weight_decay, layer_decay=layer_decay)
    else:
        groups = _decay_groups(model, weight_decay)
    if name in SGD_NAMES:
        nesterov = name == "nesterov" and momentum > 0
        # On a CPU, only the unfused one gives exactly the weights of a hand-written loop.
        fused = None if groups[0]["params"][0].device.type == "cpu" else True
        return torch.optim.SGD(
            groups, lr=learning_rate, momentum=momentum, nesterov=nesterov, fused=fused
        )
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    return kind(groups, lr=learning_rate, fused=True)


def check_optimizer(name: str) -> None:
    """Raise ConfigError if there is no optimizer of this name."""
    if name in FUSED_NAMES:
        return
    from timm.optim import list_optimizers  # slow: imports torchvision

    names = [str(known) for known in list_optimizers()]
    if name not in names:
        raise ConfigError(
            f"no optimizer '{name}'.{did_you_mean(name, [*SGD_NAMES, *names])} "
            f"There are sgd, nesterov, adam, adamw and {len(names)} from timm, such as lamb, lion "
            "and muon"
        )


def choose_learning_rate(config: Config) -> Choice[float]:
    """Choose the peak learning rate that usually works for the optimizer and model."""
    if config.learning_rate:
        return Choice(config.learning_rate, "set by you")
    if config.optimizer in SGD_NAMES:
        rate = 0.005 if config.starts_from_weights else 0.05
    elif config.starts_from_weights:
        rate = 3e-4
    else:
        rate = 0.01 if config.model in ("compact", "sprint") else 1e-3
    given = "given weights" if config.weights else "published weights"
    start = given if config.starts_from_weights else "random weights"
    return Choice(rate, f"usual for {config.optimizer} on {config.model} from {start}")


def learning_rate_factor(schedule: str, step: int, steps: int, warmup_steps: int) -> float:
    """Return the learning rate at a step as a fraction of its peak, 0 <= step < steps.

    Schedules:
        one-cycle: Up for a quarter of the run and down again, along cosines (Smith and Topin,
            arXiv:1708.07120).
        cosine: Without restarts (Loshchilov and Hutter, arXiv:1608.03983).
        linear: To zero, which the step after the last would reach (Li et al., arXiv:1905.04753).
        constant: After the warm-up.
    """
    if schedule == "one-cycle":
        return _one_cycle((step + 0.5) / steps)
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if schedule == "constant":
        return 1.0
    fraction = (step - warmup_steps) / max(1, steps - warmup_steps)
    if schedule == "linear":
        return 1 - fraction
    return 0.5 * (1 + math.cos(math.pi * fraction))


def set_learning_rate(optimizer: Optimizer, base: float, factor: float) -> None:
    """Set the learning rate of every group, times its `lr_scale` (of timm)."""
    for group in optimizer.param_groups:
        group["lr"] = base * factor * group.get("lr_scale", 1.0)


def _one_cycle(fraction: float) -> float:
    if fraction < _PEAK:
        return _interpolate_cosine(_START, 1.0, fraction / _PEAK)
    return _interpolate_cosine(1.0, _END, (fraction - _PEAK) / (1 - _PEAK))


def _interpolate_cosine(first: float, last: float, fraction: float) -> float:
    return last + (first - last) * 0.5 * (1 + math.cos(math.pi * fraction))


def _decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if weight_decay == 0:
        return [{"params": trainable, "weight_decay": 0.0}]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _timm_optimizer(
    model: nn.Module,
    name: str,
    learning_rate: float,
    weight_decay: float,
    momentum: float,
    layer_decay: float,
) -> Optimizer:
    from timm.optim import create_optimizer_v2  # slow: imports torchvision

    check_optimizer(name)
    try:
        made: Optimizer = create_optimizer_v2(
            model,
            opt=name,
            lr=learning_rate,
            weight_decay=weight_decay,
            momentum=momentum,
            layer_decay=layer_decay if layer_decay < 1 else None,
        )
    except Exception as error:  # of any type: some need a GPU or a package
        raise ConfigError(f"optimizer '{name}' cannot be used here: {error}") from error
    return made
