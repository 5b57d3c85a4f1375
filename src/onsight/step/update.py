"""One training update from a batch as the loader returns it; timing and training share it."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from onsight.config import Config
from onsight.data.augment import Augmentation
from onsight.data.augmentation_ops import Numbers
from onsight.data.loader import Batch, Chunk
from onsight.data.normalization import Normalization
from onsight.errors import ConfigError
from onsight.models.head import set_training_mode
from onsight.randomness import seed_generators
from onsight.step.optim import learning_rate_factor, set_learning_rate
from onsight.step.step import Step

_TOO_FEW_FOR_BATCH_NORM = (
    "batch norm needs more than one value per channel, and a batch of one small image has only "
    "one: raise --batch-size (or leave that size out of --batch-sizes), lower --accumulate, or "
    "raise --image-size"
)


class MovingAverage:
    """An averaged copy of a model: average <- decay * average + (1 - decay) * weights.

    Args:
        decay: It is reached as (1 + n) / (10 + n) after n updates, so that the initial weights are
            soon forgotten.
        has_good_start: Whether the initial weights are worth keeping; then the decay is constant.
    """

    def __init__(self, model: nn.Module, decay: float, has_good_start: bool = False) -> None:
        self.decay = decay
        self.has_good_start = has_good_start
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, updates: int) -> None:
        """Add the weights of a model to the average, after a number of earlier updates."""
        decay = self.decay
        if not self.has_good_start:
            decay = min(decay, (1 + updates) / (10 + updates))
        averages, current = self._float_tensors(self.model), self._float_tensors(model)
        torch._foreach_lerp_(averages, current, 1 - decay)
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(theirs)

    @staticmethod
    def _float_tensors(model: nn.Module) -> list[Tensor]:
        tensors = [*model.parameters(), *model.buffers()]
        return [tensor.detach() for tensor in tensors if tensor.is_floating_point()]


class _AugmentedChunk(NamedTuple):
    """The inputs (N, C, H, W) of a chunk in an epoch, before mixing, and their random numbers."""

    chunk: Chunk
    epoch: int
    inputs: Tensor
    numbers: Numbers


# A context for the first step of a process, with its inputs and targets: explains some of its
# errors, and checks the tensors that it has left behind.
FirstStepCheck = Callable[
    [Step, MovingAverage | None, tuple[Tensor, Tensor]], AbstractContextManager[None]
]


@dataclass
class Update:
    """Seeds the generators, augments a batch, makes a step and updates the moving average."""

    config: Config  # the seed, the schedule and whether batch norm keeps its statistics
    step: Step
    augmentation: Augmentation  # changes and mixes the images
    normalization: Normalization  # applied to the augmented images
    classes: int  # their number
    average: MovingAverage | None  # moving average, if there is one
    first_check: FirstStepCheck | None = None  # of this process
    done: int = field(default=0, init=False)  # updates made so far
    chunk: _AugmentedChunk | None = field(default=None, init=False)

    def set_learning_rate(self, position: int, total_steps: int) -> None:
        """Set the learning rate of a step at a position of the schedule."""
        config = self.config
        warmup_steps = round(config.warmup_epochs * (total_steps / config.epoch_count))
        factor = learning_rate_factor(config.schedule, position, total_steps, warmup_steps)
        set_learning_rate(self.step.optimizer, config.learning_rate, factor)

    def set_training_mode(self) -> None:
        """Put the network into training mode, except for statistics that are frozen."""
        keeps_statistics = self.config.norm_statistics == "frozen"
        set_training_mode(self.step.model, keeps_statistics)

    def __call__(self, batch: Batch, epoch: int, step: int) -> list[float]:
        """Update the weights and return the mean losses that have become known, as `Step` does.

        Raises NonFiniteStepError, or ConfigError if batch norm has too few values.
        """
        inputs, targets = self.augment(batch, epoch, step)
        if self.first_check is None:
            return self.make(inputs, targets, batch.global_labels)
        with self.first_check(self.step, self.average, (inputs, targets)):
            losses = self.make(inputs, targets, batch.global_labels)
            self.first_check = None
        return losses

    def augment(self, batch: Batch, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """Seed torch's generators; return the inputs (B, C, H, W) and targets of a batch."""
        self.step.random_key = (self.config.seed, epoch, step, self.step.world.rank)
        seed_generators(self.step.device, *self.step.random_key)
        inputs, numbers = self._change(batch, epoch)
        return self.augmentation.mix_batch(inputs, batch.labels, numbers, self.classes)

    def _change(self, batch: Batch, epoch: int) -> tuple[Tensor, Numbers]:
        """Return a batch's inputs before mixing, and their random numbers.

        Small batches come in chunks, which are changed all at once.
        """
        if batch.place_in_chunk is None:
            numbers = self.augmentation.draw_numbers(self.config.seed, epoch, batch.ids)
            return self.augmentation.augment_images(
                batch.images, numbers, self.normalization
            ), numbers
        chunk, start = batch.place_in_chunk
        if self.chunk is None or self.chunk.chunk is not chunk or self.chunk.epoch != epoch:
            self.chunk = None  # frees its memory
            numbers = self.augmentation.draw_numbers(self.config.seed, epoch, chunk.ids)
            inputs = self.augmentation.augment_images(chunk.images, numbers, self.normalization)
            self.chunk = _AugmentedChunk(chunk, epoch, inputs, numbers)
        inputs, numbers = self.chunk.inputs, self.chunk.numbers
        mine = slice(start, start + len(batch.ids))
        return inputs[mine], {column: drawn[mine] for column, drawn in numbers.items()}

    def make(self, inputs: Tensor, targets: Tensor, global_labels: Tensor) -> list[float]:
        """Update the weights from inputs that are already augmented."""
        try:
            losses = self.step(inputs, targets, global_labels)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(_TOO_FEW_FOR_BATCH_NORM) from error
        if self.average:
            self.average.update(self.step.model, self.done)
        self.done += 1
        return losses
