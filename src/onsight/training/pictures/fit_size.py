"""Which picture size fits a time budget: measured before anything is decoded."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import make_format
from onsight.data.packing import prepare_picture
from onsight.data.sources.source import Source
from onsight.errors import PictureError
from onsight.models.catalog import make_model
from onsight.training.budget import Budget
from onsight.training.step.losses import make_loss
from onsight.training.step.optim import make_optimizer
from onsight.training.step.step import Step
from onsight.training.step.timing import mean_seconds

# Larger pictures pay off only with enough epochs: (side in pixels, epochs needed).
_SIZES = ((128, 20), (96, 15), (64, 4), (48, 3), (32, 0))
_TIMED_SIDE = 64
_SAMPLED = 32  # pictures decoded to time decoding


@dataclass(frozen=True)
class Pace:
    """Measured here: seconds to decode a picture, and to train on one of 64 x 64 pixels."""

    decode_seconds: float
    train_seconds: float

    def epochs(self, side: int, pictures: int, seconds: float) -> float:
        """How many epochs over the pictures (side x side pixels) fit into the given seconds."""
        step = self.train_seconds * (side / _TIMED_SIDE) ** 2
        return max(0.0, seconds - pictures * self.decode_seconds) / (pictures * step)

    def side(self, pictures: int, seconds: float) -> int:
        """The largest side in pixels for which there is enough time."""
        return next(s for s, least in _SIZES if self.epochs(s, pictures, seconds) >= least)


def fit_image_size(
    budget: Budget, source: Source, config: Config, device: torch.device, threads: int
) -> Choice[tuple[int, int]]:
    """The (height, width) in pixels that fits what a budget leaves for decoding and training."""
    step = _random_step(config, len(source.index.classes), device)
    step()
    train_seconds = mean_seconds(step) / config.batch_size
    pace = Pace(_decoding_seconds(source, config) / threads, train_seconds)
    pictures, seconds = len(source.index), budget.left_seconds
    side, later = (pace.side(pictures, time) for time in (seconds, seconds + budget.seconds))
    epochs = pace.epochs(side, pictures, seconds)
    reason = f"the largest that there is time to train on, about {epochs:.1f} epochs"
    more = f"; with twice the time {later}x{later}" if later > side else ""
    return Choice((side, side), reason + more, epochs)


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
