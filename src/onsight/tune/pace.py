"""Measures how fast this machine decodes, trains and evaluates, before the data is decoded."""

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

_MAX_SAMPLE = 128  # images decoded to time decoding; fewer might miss the large ones

Size = tuple[int, int]


@dataclass(frozen=True)
class Pace:
    """The speed of this machine with images of one size.

    Attributes:
        size: (height, width) in pixels.
        decode_seconds: Per image, with all threads at work.
        build_seconds: To make the network.
        train: Of a training step, by batch size.
        evaluate: Of a forward pass, by batch size.
    """

    size: Size
    decode_seconds: float
    build_seconds: float
    train: Timing
    evaluate: Timing

    def best(self, other: "Pace") -> "Pace":
        """Return the shorter times of two measurements at the same size."""
        return Pace(
            self.size,
            min(self.decode_seconds, other.decode_seconds),
            min(self.build_seconds, other.build_seconds),
            self.train.best(other.train),
            self.evaluate.best(other.evaluate),
        )

    def at(self, size: Size) -> "Pace":
        """Return the speed at another size, in proportion to the area of images."""
        area = (size[0] * size[1]) / (self.size[0] * self.size[1])
        train, evaluate = self.train.scaled(area), self.evaluate.scaled(area)
        return replace(self, size=size, train=train, evaluate=evaluate)


def measure_pace(
    source: Source,
    config: Config,
    size: Size,
    device: torch.device,
    threads: int,
    max_seconds: float,
    module: nn.Module | None = None,
) -> Pace:
    """Time decoding, and training and evaluating on random images.

    Args:
        source: The data.
        config: The settings of the run.
        size: (height, width) of the images.
        device: The device to train on.
        threads: Threads for decoding.
        max_seconds: The limit on measuring, apart from making the network and the first steps.
        module: A copy of the user's own network, whose weights this changes.
    """
    begun = time.perf_counter()
    classes = len(source.index.classes)
    shape = (_channels(config, size, classes, module), *size)
    net = module or make_model(config.model, shape, classes, pretrained=config.pretrained)
    built = time.perf_counter() - begun
    trial = _RandomTrial(net.to(device), config, shape, classes, device)
    third = max_seconds / 3
    return Pace(
        size,
        decode_seconds=time_decoding(source, config, size, third) / threads,
        build_seconds=built,
        train=time_batch_sizes(trial.train, config.batch_size, third),
        evaluate=time_batch_sizes(trial.evaluate, evaluation_batch_size(device, size), third),
    )


def _channels(config: Config, size: Size, classes: int, module: nn.Module | None) -> int:
    """Return the number of channels of images that are not decoded yet.

    It is known if it is configured, or if the user's network takes only one number.
    """
    if config.channels != "auto":
        return int(config.channels)
    if module is None:
        return 3
    try:
        check_output(module, (3, *size), classes, config.model)
    except ModelError:
        return 1
    return 3


class _RandomTrial:
    """Times training steps and forward passes on random images of a shape (C, H, W)."""

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
        """Return the seconds of a step."""
        set_training_mode(self.net)
        inputs = self._inputs(images)
        labels = torch.arange(images, device=self.device) % self.classes
        return self._seconds(lambda: (self.step(inputs, labels), self.step.flush()))

    def evaluate(self, images: int) -> float:
        """Return the seconds of a forward pass."""
        self.net.eval()
        inputs = self._inputs(images)
        with torch.inference_mode():
            return self._seconds(lambda: self.net(inputs))

    def _inputs(self, images: int) -> torch.Tensor:
        inputs = torch.rand(images, *self.shape, device=self.device)
        return inputs.contiguous(memory_format=torch.channels_last)

    def _seconds(self, work: Callable[[], object]) -> float:
        return measure_seconds(work, torch.get_num_threads(), self.device)


def time_decoding(source: Source, config: Config, size: Size, max_seconds: float) -> float:
    """Return the mean seconds to decode an image, over a sample of at least one image."""
    rows = np.unique(np.linspace(0, len(source.index) - 1, _MAX_SAMPLE).astype(int))
    begun, done = time.perf_counter(), 0
    for row in rows:
        try:
            decoded, _ = prepare_image(source.read(int(row)), make_format(config, size, size))
            pixel_digest(decoded)
        except ImageError:
            continue
        finally:
            done += 1
        if time.perf_counter() - begun > max_seconds:
            break
    return (time.perf_counter() - begun) / done
