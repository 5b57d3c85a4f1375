"""A trial of a run's training step, built from the same parts as in the run, and timed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, islice

import torch

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.data.loader import Batch, Loader
from onsight.errors import NonFiniteLoss
from onsight.step.build import make_update
from onsight.step.deferred_losses import NonFiniteStepError
from onsight.step.step import StepListener
from onsight.step.timing import measure_seconds
from onsight.tune.training_data import TrainingData


class Trial:
    """Training from the seed's initial weights, for as many steps as are asked for.

    Args:
        config: The settings of the run, including threads, precision and memory format.

    Attributes:
        losses: Of the steps so far.
    """

    def __init__(self, config: Config, data: TrainingData) -> None:
        self.data = data
        self.ids = data.dataset.ids(TRAIN)
        if config.epochs == "auto":  # any number: the schedule takes no time
            config = config.model_copy(update={"epochs": 1})
        self.config = config
        self.update = make_update(
            config,
            data.new_network(config),
            data.dataset,
            data.normalization,
            data.device,
            listener=_RefuseParts(),
        )
        self.update.set_training_mode()
        self.step = self.update.step
        self.losses: list[float] = []

    def timer(self, batch_size: int) -> Callable[[int], float]:
        """Return a function that makes a number of steps and returns the seconds they took."""
        batches = self._batches(batch_size)
        self.step.set_full_batch(batch_size)

        def train(steps: int) -> None:
            for epoch, step, batch in islice(batches, steps):
                self._train_step(epoch, step, batch)

        threads, device = self.config.threads, self.data.device
        return lambda steps: measure_seconds(lambda: train(steps), threads, device)

    def flush(self) -> None:
        """Wait for the losses of all steps so far.

        Raises:
            NonFiniteLoss: If one is not a number.
        """
        with self._explain_non_finite():
            self.losses += self.step.flush()

    def _batches(self, batch_size: int) -> Iterator[tuple[int, int, Batch]]:
        """Yield full batches, epoch after epoch, each with its epoch and step."""
        full = len(self.ids) // batch_size * batch_size
        ids, mixes = self.ids[:full], self.update.augmentation.mixes
        loader = Loader(self.data.images, ids, batch_size, self.data.device, with_next=mixes)
        self.update.set_learning_rate(0, self.config.epoch_count * loader.steps)
        for epoch in count():
            for step, batch in enumerate(loader.epoch(self.config.seed, epoch)):
                yield epoch, step, batch

    def _train_step(self, epoch: int, step: int, batch: Batch) -> None:
        with self._explain_non_finite():
            self.losses += self.update(batch, epoch, step)

    @contextmanager
    def _explain_non_finite(self) -> Iterator[None]:
        try:
            yield
        except NonFiniteStepError as error:
            raise NonFiniteLoss(
                f"{error} while timing {self.config.precision}; try a lower --learning-rate"
            ) from error


class _RefuseParts(StepListener):
    """Fails a trial for lack of memory, where a run would split batches into more parts."""

    def out_of_memory(self, parts: int) -> None:
        raise torch.OutOfMemoryError("out of memory: the batch would have to be computed in parts")
