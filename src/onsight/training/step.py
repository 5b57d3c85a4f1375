"""One optimisation step: forward, loss, backward, update. Nothing else trains."""

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onsight.errors import OnsightError
from onsight.models.classifier import autocast
from onsight.training.losses import Loss


class NonFiniteStepError(OnsightError):
    """The loss of a step is NaN or infinite; the weights are as they were before it."""


class Step:
    """Makes one update from a batch of inputs (B, C, H, W) and targets.

    accumulate: parts the batch is computed in; the update is that of the whole batch.
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
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.precision = precision
        self.device = device
        self.clip_norm = clip_norm
        self.accumulate = accumulate
        scales = precision == "fp16"  # fp16 gradients vanish without a scaled loss
        self.scaler = torch.amp.GradScaler(device.type, enabled=scales)

    def __call__(self, inputs: Tensor, targets: Tensor) -> float:
        """Update the model; returns the batch's mean loss. Raises NonFiniteStepError."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.accumulate == 1:
            loss = self._part(inputs, targets, None)
        else:
            loss = self._parts(inputs, targets)
        if self.clip_norm:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def _parts(self, inputs: Tensor, targets: Tensor) -> float:
        whole = self.loss.total_weight(targets)
        parts = zip(inputs.chunk(self.accumulate), targets.chunk(self.accumulate), strict=True)
        return sum(
            self._part(part, wanted, self.loss.total_weight(wanted) / whole)
            for part, wanted in parts
        )

    def _part(self, inputs: Tensor, targets: Tensor, share: Tensor | float | None) -> float:
        """Forward and backward of a part that weighs its share in the batch's mean."""
        with autocast(self.precision, self.device):
            loss: Tensor = self.loss(self.model(inputs), targets)
        if share is not None:
            loss = loss * share
        value = loss.item()
        if not math.isfinite(value):
            raise NonFiniteStepError(f"the loss is {value}")
        self.scaler.scale(loss).backward()
        return value
