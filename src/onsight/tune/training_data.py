"""What a run trains on: images, normalization, device, and where the network comes from."""

import copy
import hashlib
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.dataset import Dataset, choose_packed_size, make_format
from onsight.data.index import TRAIN
from onsight.data.loader import BatchSource, Images
from onsight.data.normalization import Normalization, measure_normalization
from onsight.data.pack import is_packed
from onsight.data.packing import PackJob
from onsight.data.sources.source import Source
from onsight.errors import ConfigError
from onsight.models.catalog import expected_input
from onsight.step.build import make_net
from onsight.text import data_size
from onsight_explain.devices import free_memory_bytes


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


def place_data(
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


_RESIDENT_SHARE = 0.4  # of a device's or the machine's free memory: the most for images
_DISK_SHARE = 0.9  # of the free space on the cache's disk: the most for a pack


def choose_streaming(
    config: Config, source: Source, size: tuple[int, int], cache: Path | None
) -> Choice[bool]:
    """Whether to decode images again for every batch, because a pack of them would not fit.

    size: (height, width) of the model's input.
    """
    if config.residency != "auto":
        return Choice(config.residency == "stream", "set by you")
    packed = choose_packed_size(source, size, config).value
    job = PackJob(source, make_format(config, size, packed))
    if is_packed(job, cache):
        return Choice(False, "the decoded images are already in the cache")
    needed = len(source.index) * packed[0] * packed[1] * (job.target.channels or 3)
    disk = cache or Path(tempfile.gettempdir())
    free = shutil.disk_usage(_nearest_folder(disk)).free
    fits = needed <= _DISK_SHARE * free
    why = f"decoded, they take {data_size(needed)}, and {disk} has {data_size(free)} left"
    return Choice(not fits, why, needed)


def choose_residency(
    images: BatchSource, device: torch.device, asked: str = "auto", ranks: int = 1
) -> Choice[str]:
    """Where batches come from: the device, a copy in memory, the memory map or the source.

    ranks: their number; ranks on one machine share one map. Raises ConfigError.
    """
    if not isinstance(images, Images):
        return Choice("stream", "each batch is decoded from DATA")
    if asked == "device" and device.type == "cpu":
        raise ConfigError(
            "--residency device needs an accelerator; on the CPU use auto, memory, map or stream"
        )
    size = images.nbytes
    if asked != "auto":
        value, why = asked, "set by you"
    elif device.type != "cpu" and _fits(size, device):
        value, why = "device", f"fits on {device}"
    elif ranks > 1:
        value, why = "map", f"{ranks} ranks share it"
    elif _fits(size, torch.device("cpu")):
        value, why = "memory", "fits in memory"
    else:
        value, why = "map", "too large to copy to memory"
    return Choice(value, f"{why}; {data_size(size)}", size)


def place_images(images: BatchSource, residency: str, device: torch.device) -> BatchSource:
    """The images, moved to where they are to be kept."""
    if not isinstance(images, Images):
        return images
    if residency == "device":
        return images.to(device)
    return images.copied() if residency == "memory" else images


def _fits(size: int, device: torch.device) -> bool:
    return size < _RESIDENT_SHARE * free_memory_bytes(device)


def _nearest_folder(path: Path) -> Path:
    """The folder itself, or its nearest parent that already exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())
