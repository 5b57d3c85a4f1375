"""What fits into a time budget: the picture size before decoding, the epochs before training."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import make_format
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.data.loader import Loader
from onsight.data.packing import prepare_picture
from onsight.data.sources.source import Source
from onsight.errors import PictureError
from onsight.evaluation.per_image import BATCH_SIZE, evaluate_batches
from onsight.models.catalog import make_model
from onsight.models.classifier import Classifier
from onsight.models.tta import VIEWS
from onsight.report.console import Reporter
from onsight.training.autotune.trial import Trial
from onsight.training.budget.budget import Budget
from onsight.training.prepare import PreparedRun
from onsight.training.step.losses import make_loss
from onsight.training.step.optim import make_optimizer
from onsight.training.step.step import Step

# Larger pictures pay only when there is time to learn them: (side in pixels, epochs it takes).
_SIZES = ((128, 20), (96, 15), (64, 4), (48, 3), (32, 0))
_TIMED_SIDE = 64
_SAMPLED = 32  # pictures decoded to time decoding
_WINDOW_SECONDS = 0.2


@dataclass(frozen=True)
class Pace:
    """Measured on this machine: seconds to decode a picture, and to train one of 64 x 64 pixels."""

    decode_seconds: float
    train_seconds: float

    def epochs(self, side: int, pictures: int, seconds: float) -> float:
        """Epochs of so many pictures (side x side pixels) that fit into so many seconds."""
        step = self.train_seconds * (side / _TIMED_SIDE) ** 2
        return max(0.0, seconds - pictures * self.decode_seconds) / (pictures * step)

    def side(self, pictures: int, seconds: float) -> int:
        """The largest side in pixels for which there is time enough."""
        return next(s for s, least in _SIZES if self.epochs(s, pictures, seconds) >= least)


def fit_image_size(
    budget: Budget, source: Source, config: Config, device: torch.device, threads: int
) -> Choice[tuple[int, int]]:
    """The (height, width) in pixels for what a budget leaves for decoding and training."""
    step = _random_step(config, len(source.index.classes), device)
    step()
    train_seconds = _seconds(step) / config.batch_size
    pace = Pace(_decoding_seconds(source, config) / threads, train_seconds)
    pictures, seconds = len(source.index), budget.left_seconds
    side, later = (pace.side(pictures, time) for time in (seconds, seconds + budget.seconds))
    epochs = pace.epochs(side, pictures, seconds)
    reason = f"the largest that there is time to learn, about {epochs:.1f} epochs"
    more = f"; with twice the time {later}x{later}" if later > side else ""
    return Choice((side, side), reason + more, epochs)


def fit_epochs(budget: Budget, config: Config, prepared: PreparedRun, reporter: Reporter) -> Config:
    """Start the clock of training; the config with the epochs that it will come to, and says so."""
    dataset = prepared.dataset
    trial = Trial(config, prepared)
    size = min(config.batch_size, len(dataset.ids(TRAIN)))
    timed = trial.at(size)
    timed(1)
    per_picture = _seconds(lambda: timed(1)) / size
    validation, test = (len(dataset.ids(split)) for split in (VALIDATION, TEST))
    views = len(VIEWS.get(config.tta, ()))
    budget.begin(validation + (1 + views) * test, _judging_seconds(trial))
    epoch_seconds = len(dataset.ids(TRAIN)) * per_picture + validation * budget.picture_seconds
    epochs, more = budget.left_seconds / epoch_seconds, budget.seconds / epoch_seconds
    reporter.say(
        f"budget: {budget.seconds:.0f} s, of which {budget.spent():.0f} are over and "
        f"{budget.left_seconds:.0f} are for training: about {epochs:.1f} epochs at "
        f"{1 / per_picture:,.0f} images/s; with twice the time about {epochs + more:.1f}"
    )
    return config.model_copy(update={"epochs": max(1, round(epochs))})


def _judging_seconds(trial: Trial) -> float:
    """Seconds that a picture takes to be judged; the first batch is not timed."""
    net, scaling, device = trial.step.model, trial.prepared.normalization, trial.prepared.device
    classifier = Classifier(net, scaling, trial.config.precision, device)
    ids = trial.ids[: 2 * BATCH_SIZE]
    loader = Loader(trial.prepared.pictures, ids, BATCH_SIZE, device)
    judge = iter(loader.in_order())
    evaluate_batches(classifier, islice(judge, 1))
    begun = time.perf_counter()
    evaluate_batches(classifier, judge)
    return (time.perf_counter() - begun) / max(1, len(ids) - BATCH_SIZE)


def _seconds(step: Callable[[], object]) -> float:
    """Seconds of a call, over as many as fit the window; at least two."""
    begun, calls = time.perf_counter(), 0
    while calls < 2 or time.perf_counter() - begun < _WINDOW_SECONDS:
        step()
        calls += 1
    return (time.perf_counter() - begun) / calls


def _random_step(config: Config, classes: int, device: torch.device) -> Callable[[], object]:
    shape = (3, _TIMED_SIDE, _TIMED_SIDE)
    net = make_model(config.model, shape, classes).to(device)
    optimizer = make_optimizer(net, config.optimizer, 1e-6, 0.0, config.momentum)
    loss = make_loss(config.loss, 0.0, None).to(device)
    step = Step(net.train(), loss, optimizer, precision="fp32", device=device)
    net = net.to(memory_format=torch.channels_last)
    inputs = torch.rand(config.batch_size, *shape, device=device)
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(config.batch_size, device=device) % classes
    return lambda: (step(inputs, labels), step.flush())


def _decoding_seconds(source: Source, config: Config) -> float:
    rows = np.unique(np.linspace(0, len(source.index) - 1, _SAMPLED).astype(int))
    side = (_TIMED_SIDE, _TIMED_SIDE)
    begun = time.perf_counter()
    for row in rows:
        try:
            prepare_picture(source.read(int(row)), make_format(config, side, side))
        except PictureError:
            continue
    return (time.perf_counter() - begun) / len(rows)
