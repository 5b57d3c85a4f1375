"""Chooses how many folds there is time for, by the budget or else by an estimate of the work."""

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
from onsight.models.trial_forward import trial_forward
from onsight.text import duration
from onsight.tune.candidates import Candidate
from onsight.tune.epochs import choose_epochs
from onsight.tune.work import affordable_folds
from onsight_explain.threads import usable_cores

_MAX_ADDED_SECONDS = 300.0  # more is only spent on folds if --folds asks for it


def choose_max_folds(
    pack: Pack,
    config: Config,
    candidates: Sequence[Candidate],
    device: torch.device,
    budget_seconds: float,
    module: nn.Module | None = None,
) -> Choice[int]:
    """Return how many folds there is time for, or 1 for none.

    Args:
        budget_seconds: The whole budget; infinity for none.
    """
    if any(problem.reason == NO_TIME for problem in pack.problems):
        return Choice(1, "there was no time to decode all images")
    if not math.isinf(budget_seconds):
        return Choice(affordable_folds(budget_seconds), "as many as the budget has time for")
    networks = [(candidate.apply(config), candidate.image_size) for candidate in candidates]
    trained = [(network, size) for network, size in networks if not network.freeze]
    if not trained:
        return Choice(USUAL_FOLDS, "features are computed once for all folds")
    seconds = USUAL_FOLDS * sum(
        _training_seconds(pack, network, size, device, module) for network, size in trained
    )
    if seconds > _MAX_ADDED_SECONDS:
        reason = f"{USUAL_FOLDS} folds would take roughly {duration(seconds)} more (--folds)"
        return Choice(1, reason, seconds)
    return Choice(USUAL_FOLDS, "the usual number", seconds)


def _training_seconds(
    pack: Pack,
    config: Config,
    size: tuple[int, int],
    device: torch.device,
    module: nn.Module | None,
) -> float:
    """Estimate how many seconds one training takes, with inputs of this (height, width)."""
    shape, count = (pack.format.channels, *size), len(pack)
    if module is None:
        net = make_model(config.model, shape, len(pack.index.classes))
    else:
        net = copy.deepcopy(module)
    epochs = choose_epochs(config, count).value
    steps = epochs * math.ceil(count / config.batch_size)
    return expected_seconds(net.to(device), shape, epochs * count, steps, device)


# Rough rates are enough to tell seconds from minutes, and unlike measured ones repeatable.
_FLOPS_PER_CORE = 5e10
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
    rate = _FLOPS_PER_CORE * usable_cores() if device.type == "cpu" else _FLOPS_PER_ACCELERATOR
    return 3 * forward_flops(net, shape, device) * images / rate + steps * _STEP_SECONDS


def forward_flops(net: nn.Module, shape: tuple[int, int, int], device: torch.device) -> int:
    """Return the floating-point operations of one forward pass over an image (C, H, W)."""
    with FlopCounterMode(display=False) as counter:
        trial_forward(net, torch.zeros(1, *shape, device=device))
    return int(counter.get_total_flops())
