"""Explains losses and gradients that are not finite, and keeps bad weights from being saved."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from onsight.data.loader import Batch, Loader
from onsight.errors import NonFiniteLoss
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.step import Step
from onsight.training.progress import Progress


@dataclass(frozen=True)
class FiniteCheck:
    """Names the step and the images of a loss or gradients that are not finite."""

    step: Step
    loader: Loader
    seed: int  # of the order of the batches
    name_images: Callable[[Batch], str]  # for messages
    checkpoints: Path  # folder that may hold earlier, finite weights

    def explain(self, error: NonFiniteStepError, epoch: int, newest: int) -> str:
        """Describe a loss that is not finite.

        Args:
            epoch: The epoch, from 0.
            newest: The latest step that was started, from 0.
        """
        step = newest - error.steps_ago
        if self.step.losses.lag == 0 and not self._has_finite_weights():
            return self._explain_gradients(epoch, step - 1)
        if self.step.guards_weights:
            effect = "the weights were not updated from it"
        else:
            effect = f"it and {error.steps_ago} more had updated the weights before that was known"
        fp32 = "" if self.step.precision == "fp32" else ", or --precision fp32"
        return (
            f"{error} at epoch {epoch + 1}, step {step + 1} of {self.loader.steps}; {effect}. "
            f"Images of that step: {self._images(epoch, step)}. "
            f"Try a lower --learning-rate{fp32}. "
            f"Earlier good weights, if any, are in {self.checkpoints}"
        )

    def refuse_spoiled_weights(self, now: Progress) -> None:
        """Raise NonFiniteLoss if the weights are not finite, before they overwrite good ones."""
        if not self._has_finite_weights():
            raise NonFiniteLoss(self._explain_gradients(now.epoch, now.step - 1))

    def _explain_gradients(self, epoch: int, step: int) -> str:
        """Describe gradients that are not finite; step -1 is the last of the previous epoch."""
        epoch -= step < 0
        step %= self.loader.steps
        return (
            f"the gradients of epoch {epoch + 1}, step {step + 1} of {self.loader.steps} are not "
            "finite, though its loss is; the resulting weights were not saved. "
            f"Images of that step: {self._images(epoch, step)}. Try --clip-norm 1 or a lower "
            f"--learning-rate. Earlier good weights, if any, are in {self.checkpoints}"
        )

    def _images(self, epoch: int, step: int) -> str:
        return self.name_images(next(self.loader.epoch(self.seed, epoch, step)))

    def _has_finite_weights(self) -> bool:
        finite = [parameter.isfinite().all() for parameter in self.step.model.parameters()]
        return bool(torch.stack(finite).all())  # stacked, to wait for the device only once
