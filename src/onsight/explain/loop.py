"""A candidate's training loop, made of the same parts as a run's and timed by the step."""

import time
from collections.abc import Callable, Iterator
from itertools import count, islice

import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.loader import Batch, Loader
from onsight.data.views import Normalization
from onsight.errors import ConfigError, NonFiniteLoss
from onsight.explain.candidates import Candidate
from onsight.models.freeze import hold_frozen_norms
from onsight.training.build import make_augmentation, make_net, make_step, place_pictures
from onsight.training.ema import MovingAverage
from onsight.training.optim import learning_rate_factor, set_learning_rate
from onsight.training.plan import Plan, choose_residency
from onsight.training.step import NonFiniteStepError


class Loop:
    """The training of a run with this config on a candidate, from the seed's first weights."""

    def __init__(
        self,
        candidate: Candidate,
        config: Config,
        dataset: Dataset,
        normalization: Normalization,
    ) -> None:
        device = candidate.device
        plan: Plan = {
            "device": Choice(device, "compared"),
            "pictures": choose_residency(dataset.pictures, device),
        }
        self.candidate = candidate
        self.config = config
        self.normalization = normalization
        self.classes = len(dataset.classes)
        self.ids = dataset.ids(TRAIN)
        self.pictures = place_pictures(dataset, plan)
        self.augmentation = make_augmentation(config)
        net = make_net(config, dataset, device).train()
        hold_frozen_norms(net)
        self.average = MovingAverage(net, config.ema) if config.ema else None
        self.step = make_step(config, net, dataset, candidate.precision, device)
        self.updates = 0

    def at(self, batch_size: int) -> Callable[[int], float]:
        """A function that makes so many steps of this batch size and returns their seconds."""
        batches = self._batches(batch_size)

        def work(steps: int) -> None:
            for epoch, batch in islice(batches, steps):
                self._train_step(epoch, batch)

        def timed(steps: int) -> float:
            return measure_seconds(lambda: work(steps), self.candidate)

        return timed

    def _batches(self, batch_size: int) -> Iterator[tuple[int, Batch]]:
        """Epoch after epoch of full batches, each with its epoch's number."""
        full = len(self.ids) // batch_size * batch_size
        ids, mixes = self.ids[:full], self.augmentation.mixes
        loader = Loader(self.pictures, ids, batch_size, self.candidate.device, with_next=mixes)
        set_learning_rate(self.step.optimizer, self.config.learning_rate, self._first_rate(loader))
        for epoch in count():
            for batch in loader.epoch(self.config.seed, epoch):
                yield epoch, batch

    def _first_rate(self, loader: Loader) -> float:
        config = self.config
        warmup = round(config.warmup_epochs * loader.steps)
        return learning_rate_factor(config.schedule, 0, config.epochs * loader.steps, warmup)

    def _train_step(self, epoch: int, batch: Batch) -> None:
        numbers = self.augmentation.draw(self.config.seed, epoch, batch.ids)
        inputs, targets = self.augmentation.apply(batch, numbers, self.normalization, self.classes)
        try:
            self.step(inputs, targets)
        except NonFiniteStepError as error:
            raise NonFiniteLoss(
                f"{error} while timing {self.candidate.name}; try a lower --learning-rate"
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


def measure_seconds(work: Callable[[], None], candidate: Candidate) -> float:
    """Seconds of some work with the candidate's threads, its device waited for at both ends."""
    former = torch.get_num_threads()
    torch.set_num_threads(candidate.threads)
    try:
        _synchronize(candidate.device)
        begun = time.perf_counter()
        work()
        _synchronize(candidate.device)
        return time.perf_counter() - begun
    finally:
        torch.set_num_threads(former)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
