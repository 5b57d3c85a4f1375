"""How many folds there is time for, unasked: by the budget, or else by an estimate of the work."""

import copy
import math

import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.pack import Pack
from onsight.data.split import USUAL_FOLDS
from onsight.models.catalog import make_model
from onsight.text import duration
from onsight.training.budget import Budget
from onsight.training.workload import expected_seconds

_LEAST_SECONDS = 3.0  # of a budget, for each training
_MOST_SECONDS = 300.0  # that folds may add to a run unasked


def choose_most_folds(
    pack: Pack,
    config: Config,
    device: torch.device,
    budget: Budget | None = None,
    module: nn.Module | None = None,
) -> Choice[int]:
    """How many folds there is time for; 1 for none. module: the user's own network, if any."""
    if budget:
        folds = int(budget.left_seconds / _LEAST_SECONDS) - 1  # the kept model is trained too
        left = duration(max(0.0, budget.left_seconds))
        reason = (
            f"the budget leaves {left}, at {duration(_LEAST_SECONDS)} or more for each training"
        )
        return Choice(max(1, folds), reason)
    if config.freeze:
        return Choice(USUAL_FOLDS, "features are computed once for all folds")
    seconds = USUAL_FOLDS * _training_seconds(pack, config, device, module)
    if seconds > _MOST_SECONDS:
        reason = f"{USUAL_FOLDS} folds would take roughly {duration(seconds)} more (--folds)"
        return Choice(1, reason, seconds)
    return Choice(USUAL_FOLDS, "the usual number", seconds)


def _training_seconds(
    pack: Pack, config: Config, device: torch.device, module: nn.Module | None
) -> float:
    """Roughly how many seconds one training takes."""
    shape, count = (pack.format.channels, *pack.format.model_size), len(pack)
    if module is None:
        net = make_model(config.model, shape, len(pack.index.classes))
    else:
        net = copy.deepcopy(module)
    steps = config.epochs * math.ceil(count / config.batch_size)
    return expected_seconds(net.to(device), shape, config.epochs * count, steps, device)
