"""Chooses how many folds there is time for, by an estimate of the work."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.pack import Pack
from onsight.data.packing import NO_TIME
from onsight.data.split import USUAL_FOLDS
from onsight.models.catalog import make_model
from onsight.models.trial_forward import has_depthwise_layers, trial_forward
from onsight.text import duration
from onsight.tune.candidates import Candidate
from onsight.tune.epochs import most_epochs
from onsight.tune.work import affordable_folds, nominal_seconds, training_seconds

_FEW_EPOCHS = 0.5  # of the most that are worth their time; folds do not take those


def choose_max_folds(
    pack: Pack,
    config: Config,
    candidates: Sequence[Candidate],
    device: torch.device,
    module: nn.Module | None = None,
) -> Choice[int]:
    """Return how many folds there is time for, or 1 for none."""
    if any(problem.reason == NO_TIME for problem in pack.problems):
        return Choice(1, "there was no time to decode all images")
    seconds = nominal_seconds(config, len(pack))
    if config.budget:
        return Choice(affordable_folds(seconds), "as many as the budget has time for")
    network = candidates[0].apply(config)
    if len(candidates) > 1 or candidates[0].epochs or network.freeze:
        return Choice(affordable_folds(seconds), f"--effort {config.effort} has time for them")
    epoch_seconds = _epoch_seconds(pack, network, candidates[0].image_size, device, module)
    epochs = math.ceil(_FEW_EPOCHS * most_epochs(config, config.starts_from_weights))
    if config.epochs != "auto":
        epochs = config.epochs
    added_seconds = USUAL_FOLDS * epochs * epoch_seconds
    if added_seconds + epochs * epoch_seconds > training_seconds(seconds):
        reason = f"{USUAL_FOLDS} folds would take roughly {duration(added_seconds)} more (--folds)"
        return Choice(1, reason, added_seconds)
    return Choice(USUAL_FOLDS, "the usual number", added_seconds)


def _epoch_seconds(
    pack: Pack,
    config: Config,
    size: tuple[int, int],
    device: torch.device,
    module: nn.Module | None,
) -> float:
    """Estimate how many seconds an epoch of one training takes."""
    shape, count = (pack.format.channels, *size), len(pack)
    if module is None:
        net = make_model(config.model, shape, len(pack.index.classes))
    else:
        net = copy.deepcopy(module)
    steps = math.ceil(count / config.batch_size)
    return expected_seconds(net.to(device), shape, count, steps, device)


# Rough rates are enough to tell seconds from minutes, and unlike measured ones repeatable. Those of
# CPUs are of two cores, however many there are. Depthwise layers move more data than they compute.
_FLOPS_PER_CPU, _FLOPS_PER_CPU_DEPTHWISE = 1e11, 3e10
_FLOPS_PER_ACCELERATOR = 1e13
_STEP_SECONDS = 1e-3


def expected_seconds(
    net: nn.Module, shape: tuple[int, int, int], images: int, steps: int, device: torch.device
) -> float:
    """Estimate the seconds that training takes.

    Each image costs three forward passes (Kaplan et al., arXiv:2001.08361), and each step some
    overhead.

    Args:
        shape: (C, H, W) of its inputs.
        images: Images in all epochs together.
        steps: Steps in all epochs together.
    """
    return 3 * expected_forward_seconds(net, shape, device) * images + steps * _STEP_SECONDS


def expected_forward_seconds(
    net: nn.Module, shape: tuple[int, int, int], device: torch.device
) -> float:
    """Estimate the seconds of one forward pass over an image (C, H, W)."""
    rate = _FLOPS_PER_ACCELERATOR
    if device.type == "cpu":
        rate = _FLOPS_PER_CPU_DEPTHWISE if has_depthwise_layers(net) else _FLOPS_PER_CPU
    return forward_flops(net, shape, device) / rate


def forward_flops(net: nn.Module, shape: tuple[int, int, int], device: torch.device) -> int:
    """Return the floating-point operations of one forward pass over an image (C, H, W)."""
    with FlopCounterMode(display=False) as counter:
        trial_forward(net, torch.zeros(1, *shape, device=device))
    return int(counter.get_total_flops())
