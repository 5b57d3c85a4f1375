"""A moving average of the weights, evaluated and saved in their place."""

import copy

import torch
from torch import Tensor, nn


class MovingAverage:
    """An averaged copy of a model: average <- decay * average + (1 - decay) * weights.

    The decay grows from 0 as (1 + n) / (10 + n), so that the initial weights are soon forgotten;
    not if the start is good, whose weights then count like any other's.
    """

    def __init__(self, model: nn.Module, decay: float, good_start: bool = False) -> None:
        self.decay = decay
        self.good_start = good_start
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Average in the weights of a model; updates: how many were averaged before."""
        decay = self.decay
        if not self.good_start:
            decay = min(decay, (1 + updates) / (10 + updates))
        average, current = self._floats(self.model), self._floats(model)
        torch._foreach_lerp_(average, current, 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(theirs)

    @staticmethod
    def _floats(model: nn.Module) -> list[Tensor]:
        tensors = [*model.parameters(), *model.buffers()]
        return [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
