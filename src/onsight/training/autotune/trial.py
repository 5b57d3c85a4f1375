"""A run's training step on trial: made of the same parts as a run's, and timed."""

import time
from collections.abc import Callable, Iterator
from itertools import count, islice

import torch

from onsight.config import Config
from onsight.data.index import TRAIN
from onsight.data.loader import Batch, Loader
from onsight.errors import ConfigError, NonFiniteLoss
from onsight.models.freeze import hold_frozen_norms
from onsight.randomness import seed_generators
from onsight.training.build import make_augmentation, make_step
from onsight.training.prepare import PreparedRun
from onsight.training.step.deferred_losses import NonFiniteStepError
from onsight.training.step.ema import MovingAverage
from onsight.training.step.optim import learning_rate_factor, set_learning_rate


class Trial:
    """The training of a run with this config on prepared data, from the seed's first weights.

    The config says how it computes: threads, precision, memory format; losses: those of its
    steps so far.
    """

    def __init__(self, config: Config, prepared: PreparedRun) -> None:
        self.config = config
        self.prepared = prepared
        dataset, device = prepared.dataset, prepared.device
        self.ids = dataset.ids(TRAIN)
        self.augmentation = make_augmentation(config, dataset)
        net = prepared.draft(config).train()
        hold_frozen_norms(net)
        self.average = MovingAverage(net, config.ema) if config.ema else None
        self.step = make_step(config, net, dataset, config.precision, device)
        self.step.on_halved = _refuse
        self.losses: list[float] = []
        self.updates = 0

    def at(self, batch_size: int) -> Callable[[int], float]:
        """A function that makes so many steps of this batch size and returns their seconds."""
        batches = self._batches(batch_size)

        def work(steps: int) -> None:
            for epoch, step, batch in islice(batches, steps):
                self._train_step(epoch, step, batch)

        def timed(steps: int) -> float:
            return measure_seconds(lambda: work(steps), self.config.threads, self.prepared.device)

        return timed

    def _batches(self, batch_size: int) -> Iterator[tuple[int, int, Batch]]:
        """Epoch after epoch of full batches, each with its epoch's number and its own."""
        full = len(self.ids) // batch_size * batch_size
        ids, mixes = self.ids[:full], self.augmentation.mixes
        pictures, device = self.prepared.pictures, self.prepared.device
        loader = Loader(pictures, ids, batch_size, device, with_next=mixes)
        set_learning_rate(self.step.optimizer, self.config.learning_rate, self._first_rate(loader))
        for epoch in count():
            for step, batch in enumerate(loader.epoch(self.config.seed, epoch)):
                yield epoch, step, batch

    def _first_rate(self, loader: Loader) -> float:
        config = self.config
        warmup = round(config.warmup_epochs * loader.steps)
        return learning_rate_factor(config.schedule, 0, config.epochs * loader.steps, warmup)

    def _train_step(self, epoch: int, step: int, batch: Batch) -> None:
        normalization, classes = self.prepared.normalization, len(self.prepared.dataset.classes)
        seed_generators(self.prepared.device, self.config.seed, epoch, step, 0)
        numbers = self.augmentation.draw(self.config.seed, epoch, batch.ids)
        inputs, targets = self.augmentation.apply(batch, numbers, normalization, classes)
        try:
            self.losses += self.step(inputs, targets)
        except NonFiniteStepError as error:
            raise NonFiniteLoss(
                f"{error} while timing batch {len(targets)} with {self.config.precision}; "
                "try a lower --learning-rate"
            ) from error
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(
                f"batch norm needs more than one value a channel, and batch {len(batch.ids)} "
                "gives one: leave that size out of --batch-sizes, or lower --accumulate"
            ) from error
        if self.average:
            self.average.update(self.step.model, self.updates)
        self.updates += 1


def _refuse(parts: int) -> None:
    raise torch.OutOfMemoryError("out of memory: the batch would be computed in parts")


def measure_seconds(work: Callable[[], None], threads: int, device: torch.device) -> float:
    """Seconds of some work with so many threads, its device waited for at both ends."""
    former = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        _synchronize(device)
        begun = time.perf_counter()
        work()
        _synchronize(device)
        return time.perf_counter() - begun
    finally:
        torch.set_num_threads(former)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
