"""Numbers that are not finite: the step and its images are named, spoiled weights not saved."""

from collections.abc import Callable
from pathlib import Path

import torch

from onsight.data.loader import Batch, Loader
from onsight.errors import NonFiniteLoss
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.step import Step
from onsight.training.progress import Progress


class FiniteCheck:
    """Tells from which images a loss or gradients came that are not finite.

    checkpoints: the folder where good weights may be.
    """

    def __init__(
        self,
        step: Step,
        loader: Loader,
        seed: int,
        name_images: Callable[[Batch], str],
        checkpoints: Path,
    ) -> None:
        self.step = step
        self.loader = loader
        self.seed = seed
        self.name_images = name_images
        self.earlier = f"Earlier good weights, if any, are in {checkpoints}"

    def explain(self, error: NonFiniteStepError, epoch: int, newest: int) -> str:
        """Describe a loss that is not finite. newest: the last step that was begun."""
        step = newest - error.steps_ago
        if self.step.losses.lag == 0 and not self._has_finite_weights():
            return self._explain_spoiled(epoch, step - 1)
        spoiled = f"it and {error.steps_ago} more had updated the weights before that was known"
        guarded = "the weights were not updated from it"
        return (
            f"{error} at epoch {epoch + 1}, step {step + 1} of {self.loader.steps}; "
            f"{guarded if self.step.guards_weights else spoiled}. "
            f"Images of that step: {self._images(epoch, step)}. "
            f"Try a lower --learning-rate"
            f"{', or --precision fp32' if self.step.precision != 'fp32' else ''}. {self.earlier}"
        )

    def refuse_spoiled_weights(self, now: Progress) -> None:
        """Raise NonFiniteLoss if the weights are not finite: they must not replace good ones."""
        if not self._has_finite_weights():
            raise NonFiniteLoss(self._explain_spoiled(now.epoch, now.step - 1))

    def _explain_spoiled(self, epoch: int, step: int) -> str:
        """Describe gradients that were not finite. step: -1 is the last of the epoch before."""
        epoch -= step < 0
        step %= self.loader.steps
        return (
            f"the gradients of epoch {epoch + 1}, step {step + 1} of {self.loader.steps} are not "
            "finite, though its loss is; the weights that they spoiled were not saved. "
            f"Images of that step: {self._images(epoch, step)}. Try --clip-norm 1 or a lower "
            f"--learning-rate. {self.earlier}"
        )

    def _images(self, epoch: int, step: int) -> str:
        return self.name_images(next(self.loader.epoch(self.seed, epoch, step)))

    def _has_finite_weights(self) -> bool:
        finite = [one.isfinite().all() for one in self.step.model.parameters()]
        return bool(torch.stack(finite).all())  # one wait for the device
