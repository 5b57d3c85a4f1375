"""What a run trains on: images, normalization, device, and where the network comes from."""

import copy
import hashlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from onsight.config import Config
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.loader import BatchSource, Images
from onsight.data.normalization import Normalization, measure_normalization
from onsight.models.catalog import expected_input
from onsight.step.build import make_net
from onsight.training.images.residency import place_images


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on.

    images: where batches come from; module: the user's own network, if any.
    """

    dataset: Dataset
    images: BatchSource
    normalization: Normalization
    device: torch.device
    module: nn.Module | None = None

    def new_network(self, config: Config) -> nn.Module:
        """A network with the run's initial weights, to try things out."""
        return make_net(config, self.dataset, self.device, copy.deepcopy(self.module))


def place(
    dataset: Dataset,
    config: Config,
    device: torch.device,
    residency: str,
    module: nn.Module | None = None,
) -> TrainingData:
    """Put the images where batches are taken from, and measure their normalization."""
    images = place_images(dataset.images, residency, device)
    normalization = make_normalization(config, images, dataset)
    return TrainingData(dataset, images, normalization, device, module)


def make_normalization(config: Config, images: BatchSource, dataset: Dataset) -> Normalization:
    """The normalization asked for; measured on the training images if the data decides."""
    return replace(_make_scaling(config, images, dataset), size=dataset.input_shape[1:])


def _make_scaling(config: Config, images: BatchSource, dataset: Dataset) -> Normalization:
    channels = dataset.input_shape[0]
    if config.normalize == "half":
        return Normalization((0.5,) * channels, (0.5,) * channels)
    if config.normalize == "none":
        return Normalization((0.0,) * channels, (1.0,) * channels)
    if config.normalize == "auto" and config.starts_from_weights:
        wanted = expected_input(config.model, config.weights)
        if wanted:
            return Normalization(*wanted.scaling(channels))
    kept = images if isinstance(images, Images) else Images.of(dataset.pack)
    return measure_normalization(kept, dataset.ids(TRAIN))


def data_key(dataset: Dataset) -> str:
    """A digest of the images, their labels and their split."""
    digest = hashlib.sha256("\n".join(dataset.classes).encode("utf-8", "surrogateescape"))
    for column in (dataset.pack.digests, dataset.pack.index.labels, dataset.splits):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
