"""One training update from a batch as loaded; timing and training share it."""

import copy
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

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
from onsight.step.optim import Schedule, set_learning_rate
from onsight.step.step import Step

_TOO_FEW_FOR_BATCH_NORM = (
    "batch norm needs more than one value per channel, and a batch of one small image has only "
    "one: raise --batch-size (or leave that size out of --batch-sizes), lower --accumulate, or "
    "raise --image-size"
)


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


class _Ready(NamedTuple):
    """The inputs (N, C, H, W) of a chunk in an epoch, before mixing, and its numbers."""

    chunk: Chunk
    epoch: int
    inputs: Tensor
    numbers: Numbers


class FirstStepCheck(Protocol):
    """Looks at the first step that this process makes."""

    def explaining(
        self, step: Step, average: MovingAverage | None, batch: tuple[Tensor, Tensor]
    ) -> AbstractContextManager[None]:
        """Return a block to make the step in, which explains some of its errors."""

    def check(
        self, step: Step, average: MovingAverage | None, batch: tuple[Tensor, Tensor]
    ) -> None:
        """Check the inputs and targets of a step that was made, and what it has left behind."""


class Update:
    """Seeds, augments, steps and averages. done: updates made so far, for the average.

    first_check: looks at the first step of this process, if given.
    """

    def __init__(
        self,
        config: Config,
        step: Step,
        augmentation: Augmentation,
        normalization: Normalization,
        classes: int,
        average: MovingAverage | None,
        first_check: FirstStepCheck | None = None,
    ) -> None:
        self.seed = config.seed
        self.schedule = Schedule.of(config)
        self.keeps_statistics = config.norm_statistics == "frozen"
        self.step = step
        self.augmentation = augmentation
        self.normalization = normalization
        self.classes = classes
        self.average = average
        self.first_check = first_check
        self.done = 0
        self.ready: _Ready | None = None

    def set_learning_rate(self, position: int, total_steps: int) -> None:
        """Set the learning rate of a step at a position of the schedule."""
        factor = self.schedule.factor(position, total_steps)
        set_learning_rate(self.step.optimizer, self.schedule.peak, factor)

    def set_training_mode(self) -> None:
        """Put the network into training mode, but for statistics that stay as they are."""
        set_training_mode(self.step.model, self.keeps_statistics)

    def __call__(self, batch: Batch, epoch: int, step: int) -> list[float]:
        """Update the weights; returns the mean losses known by now, as `Step` does.

        Raises NonFiniteStepError, ConfigError.
        """
        inputs, targets = self.augmented(batch, epoch, step)
        if self.first_check:
            return self._make_first(self.first_check, inputs, targets, batch.global_labels)
        return self.make(inputs, targets, batch.global_labels)

    def _make_first(
        self, check: FirstStepCheck, inputs: Tensor, targets: Tensor, global_labels: Tensor
    ) -> list[float]:
        batch = (inputs, targets)
        with check.explaining(self.step, self.average, batch):
            losses = self.make(inputs, targets, global_labels)
        self.first_check = None
        check.check(self.step, self.average, batch)
        return losses

    def augmented(self, batch: Batch, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        """The inputs (B, C, H, W) and targets of a batch; seeds torch's generators too."""
        seed_generators(self.step.device, self.seed, epoch, step, self.step.world.rank)
        inputs, numbers = self._changed(batch, epoch)
        return self.augmentation.mixed(inputs, batch.labels, numbers, self.classes)

    def _changed(self, batch: Batch, epoch: int) -> tuple[Tensor, Numbers]:
        """A batch's inputs before mixing, and its numbers; those of its chunk are made at once."""
        if batch.part is None:
            numbers = self.augmentation.draw(self.seed, epoch, batch.ids)
            return self.augmentation.change(batch.images, numbers, self.normalization), numbers
        chunk, start = batch.part
        if self.ready is None or self.ready.chunk is not chunk or self.ready.epoch != epoch:
            self.ready = None  # makes room
            numbers = self.augmentation.draw(self.seed, epoch, chunk.ids)
            inputs = self.augmentation.change(chunk.images, numbers, self.normalization)
            self.ready = _Ready(chunk, epoch, inputs, numbers)
        inputs, numbers = self.ready.inputs, self.ready.numbers
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
