"""One optimisation step: forward, loss, backward, update. Nothing else trains."""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onsight.errors import OnsightError
from onsight.models.classifier import autocast
from onsight.training.losses import Loss
from onsight.training.parallel import Replica
from onsight.training.world import World


class NonFiniteStepError(OnsightError):
    """The loss of a step is NaN or infinite; the weights are as they were before it."""


class Step:
    """Makes one update from a batch of inputs (B, C, H, W) and targets.

    accumulate: parts the batch is computed in; the update is that of the whole batch.
    replica: this rank's copy of the model when several ranks share each batch.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: Optimizer,
        *,
        precision: str,
        device: torch.device,
        clip_norm: float = 0.0,
        accumulate: int = 1,
        world: World | None = None,
        replica: Replica | None = None,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.precision = precision
        self.device = device
        self.clip_norm = clip_norm
        self.accumulate = accumulate
        self.world = world or World()
        self.replica = replica
        scales = precision == "fp16"  # fp16 gradients vanish without a scaled loss
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def __call__(self, inputs: Tensor, targets: Tensor, whole: Tensor | None = None) -> float:
        """Update the model; returns the batch's mean loss. Raises NonFiniteStepError.

        whole: labels of the whole batch when inputs and targets are this rank's share of it.
        """
        self.optimizer.zero_grad(set_to_none=True)
        *first, last = self._parts(inputs, targets)
        weight = self._weight(targets, whole)
        value = 0.0
        for part in first:
            with self.replica.unsynced() if self.replica else nullcontext():
                loss, share = self._forward(*part, weight)
                value += loss.item() * share
                self._backward(loss, share)
        loss, share = self._forward(*last, weight)
        total = self.world.total(value + loss.item() * share)
        self._backward(loss, share)
        value = total()
        if not math.isfinite(value):
            raise NonFiniteStepError(f"the loss is {value}")
        self._update()
        return value

    def _parts(self, inputs: Tensor, targets: Tensor) -> list[tuple[Tensor, Tensor]]:
        """As many parts at every rank, because all must meet in each; alone, none is empty."""
        count = self.accumulate if self.replica else max(1, min(self.accumulate, len(inputs)))
        return list(zip(inputs.tensor_split(count), targets.tensor_split(count), strict=True))

    def _weight(self, targets: Tensor, whole: Tensor | None) -> float:
        """What the whole batch weighs in its mean loss."""
        if whole is None:
            return float(self.loss.total_weight(targets))
        return float(len(whole) if targets.ndim == 2 else self.loss.total_weight(whole))

    def _forward(self, inputs: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, float]:
        """The mean loss of a part, and its share in the whole batch's."""
        with autocast(self.precision, self.device):
            logits = (self.replica or self.model)(inputs)
            if len(targets) == 0:
                return logits.sum(), 0.0
            loss: Tensor = self.loss(logits, targets)
        return loss, float(self.loss.total_weight(targets)) / weight

    def _backward(self, loss: Tensor, share: float) -> None:
        # torch makes the mean over ranks, so that each counts as if it were all of them.
        factor = share * self.world.size
        self.scaler.scale(loss if factor == 1 else loss * factor).backward()

    def _update(self) -> None:
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
