"""How fast this machine decodes, trains and evaluates, measured before anything is decoded."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from onsight.config import Config
from onsight.data.dataset import make_format
from onsight.data.decode import pixel_digest, prepare_image
from onsight.data.sources.source import Source
from onsight.errors import ImageError, ModelError
from onsight.evaluation.predictions import evaluation_batch_size
from onsight.models.catalog import make_model
from onsight.models.head import freeze_backbone, set_training_mode
from onsight.models.trial_forward import check_output
from onsight.step.losses import make_loss
from onsight.step.optim import make_optimizer
from onsight.step.step import Step
from onsight.step.timing import Timing, measure_seconds, time_batch_sizes

_SAMPLED = 128  # images decoded at most to time decoding: a few large ones take most of it

Size = tuple[int, int]


@dataclass(frozen=True)
class Pace:
    """Seconds to decode an image in one of the threads and to make the network; of a training
    step and of an evaluation by batch size. size: (height, width) in pixels.
    """

    size: Size
    decode_seconds: float
    build_seconds: float
    train: Timing
    judge: Timing

    def best(self, other: "Pace") -> "Pace":
        """The shorter times of two measurements at the same size."""
        return Pace(
            self.size,
            min(self.decode_seconds, other.decode_seconds),
            min(self.build_seconds, other.build_seconds),
            self.train.best(other.train),
            self.judge.best(other.judge),
        )

    def at(self, size: Size) -> "Pace":
        """The same for images of another (height, width): in proportion to their area."""
        area = (size[0] * size[1]) / (self.size[0] * self.size[1])
        train, judge = self.train.scaled(area), self.judge.scaled(area)
        return replace(self, size=size, train=train, judge=judge)


def measure_pace(
    source: Source,
    config: Config,
    size: Size,
    device: torch.device,
    threads: int,
    most_seconds: float,
    module: nn.Module | None = None,
) -> Pace:
    """Time decoding, training and evaluating on random images of this (height, width).

    module: the user's own network, used as it is but for the trial's updates, so pass a copy.
    Takes most_seconds at most, apart from making the network and steps on two images.
    """
    begun = time.perf_counter()
    classes = len(source.index.classes)
    shape = (_channels(config, size, classes, module), *size)
    net = module or make_model(config.model, shape, classes, pretrained=config.pretrained)
    built = time.perf_counter() - begun
    trial = _RandomTrial(net.to(device), config, shape, classes, device)
    third = most_seconds / 3
    return Pace(
        size,
        decoding_seconds(source, config, size, third) / threads,
        built,
        time_batch_sizes(trial.train, config.batch_size, third),
        time_batch_sizes(trial.judge, evaluation_batch_size(device, size), third),
    )


def _channels(config: Config, size: Size, classes: int, module: nn.Module | None) -> int:
    """The images' channels, known before decoding only if asked for or if a module tells."""
    if config.channels != "auto" or module is None:
        return int(config.channels) if config.channels != "auto" else 3
    try:
        check_output(module, (3, *size), classes, config.model)
    except ModelError:
        return 1
    return 3


class _RandomTrial:
    """Training steps and forward passes over random images (C, H, W)."""

    def __init__(
        self,
        net: nn.Module,
        config: Config,
        shape: tuple[int, int, int],
        classes: int,
        device: torch.device,
    ) -> None:
        if config.freeze:
            freeze_backbone(net)
        optimizer = make_optimizer(net, config.optimizer, 1e-6, 0.0, config.momentum)
        loss = make_loss(config.loss, 0.0, None).to(device)
        self.step = Step(net, loss, optimizer, precision="fp32", device=device)
        self.net = net.to(memory_format=torch.channels_last)
        self.shape, self.classes, self.device = shape, classes, device

    def train(self, images: int) -> float:
        """Seconds of a step."""
        set_training_mode(self.net)
        inputs = self._inputs(images)
        labels = torch.arange(images, device=self.device) % self.classes
        return self._seconds(lambda: (self.step(inputs, labels), self.step.flush()))

    def judge(self, images: int) -> float:
        """Seconds of a forward pass."""
        self.net.eval()
        inputs = self._inputs(images)
        with torch.inference_mode():
            return self._seconds(lambda: self.net(inputs))

    def _inputs(self, images: int) -> torch.Tensor:
        inputs = torch.rand(images, *self.shape, device=self.device)
        return inputs.contiguous(memory_format=torch.channels_last)

    def _seconds(self, work: Callable[[], object]) -> float:
        return measure_seconds(work, torch.get_num_threads(), self.device)


def decoding_seconds(source: Source, config: Config, size: Size, most_seconds: float) -> float:
    """Seconds to decode one of a sample of images, at least one of them."""
    rows = np.unique(np.linspace(0, len(source.index) - 1, _SAMPLED).astype(int))
    begun, done = time.perf_counter(), 0
    for row in rows:
        try:
            decoded, _ = prepare_image(source.read(int(row)), make_format(config, size, size))
            pixel_digest(decoded)
        except ImageError:
            continue
        finally:
            done += 1
        if time.perf_counter() - begun > most_seconds:
            break
    return (time.perf_counter() - begun) / done
