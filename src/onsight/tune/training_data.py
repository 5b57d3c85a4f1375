"""What a run trains on: images, normalization, device, and where the network comes from."""

import copy
import hashlib
import math
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from onsight.choice import Choice
from onsight.config import Config
from onsight.data.cache import find_cache_folder
from onsight.data.dataset import Dataset
from onsight.data.index import TRAIN
from onsight.data.loader import BatchSource, Images
from onsight.data.normalization import Normalization, measure_normalization, shrink_images
from onsight.data.pack import is_packed
from onsight.data.sizes import make_pack_job
from onsight.data.sources.source import Source
from onsight.errors import ConfigError
from onsight.models.catalog import expected_input
from onsight.step.build import make_net
from onsight.text import data_size
from onsight_explain.devices import free_memory_bytes


@dataclass(frozen=True)
class TrainingData:
    """What a run trains on."""

    dataset: Dataset  # images and their split
    images: BatchSource  # where batches come from
    normalization: Normalization  # from pixels to the model's input
    device: torch.device  # device to train on
    module: nn.Module | None = None  # user's own network, if any

    def new_network(self, config: Config) -> nn.Module:
        """Return a new network with the run's initial weights, for trials."""
        return make_net(config, self.dataset, self.device, copy.deepcopy(self.module))


def place_data(
    dataset: Dataset,
    config: Config,
    device: torch.device,
    residency: str,
    module: nn.Module | None = None,
) -> TrainingData:
    """Move the images to where they are kept, and choose their normalization.

    For a network with a much smaller input, they are shrunk once instead of with every batch.
    """
    disk = find_cache_folder(config.cache_folder) or Path(tempfile.gettempdir())
    images = place_images(_shrink_to_input(dataset, disk), residency, device)
    normalization = make_normalization(config, images, dataset)
    return TrainingData(dataset, images, normalization, device, module)


def _shrink_to_input(dataset: Dataset, disk: Path) -> BatchSource:
    """Return the images, shrunk to the input if it is at most half as high and as wide.

    If they do not fit into memory, they are on the disk: which pixels are augmented is always the
    same.
    """
    images, size = dataset.images, dataset.input_shape[1:]
    if not isinstance(images, Images) or dataset.format.input_size is None:
        return images
    height, width, _ = images.shape
    is_worth_it = 2 * size[0] <= height and 2 * size[1] <= width
    fits = _fits(images.nbytes * math.prod(size) // (height * width), torch.device("cpu"))
    return shrink_images(images, size, None if fits else disk) if is_worth_it else images


def make_normalization(config: Config, images: BatchSource, dataset: Dataset) -> Normalization:
    """Return the configured normalization; by default it is measured on the training images."""
    return replace(_make_scaling(config, images, dataset), size=dataset.input_shape[1:])


def _make_scaling(config: Config, images: BatchSource, dataset: Dataset) -> Normalization:
    channels = dataset.input_shape[0]
    if config.normalize == "half":
        return Normalization((0.5,) * channels, (0.5,) * channels)
    if config.normalize == "none":
        return Normalization((0.0,) * channels, (1.0,) * channels)
    if config.normalize == "auto" and config.starts_from_weights:
        expected = expected_input(config.model, config.weights, config.member)
        if expected:
            return Normalization(*expected.scaling(channels))
    decoded = images if isinstance(images, Images) else Images.of(dataset.pack)
    return measure_normalization(decoded, dataset.ids(TRAIN))


def data_key(dataset: Dataset) -> str:
    """Return a digest of the images, their labels and their split."""
    digest = hashlib.sha256("\n".join(dataset.classes).encode("utf-8", "surrogateescape"))
    for column in (dataset.pack.digests, dataset.pack.index.labels, dataset.splits):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


_MAX_MEMORY_SHARE = 0.4  # of a device's or the machine's free memory, for images
_MAX_COPIED_BYTES = 256_000_000  # of images, for a CPU: it reads a mapped file as fast
_MAX_DISK_SHARE = 0.9  # of the free space on the cache's disk, for a pack


def choose_streaming(
    config: Config, source: Source, size: tuple[int, int], cache: Path | None
) -> Choice[bool]:
    """Choose whether to decode images for every batch, because a pack of them would not fit.

    Args:
        size: (height, width) of the model's input.
    """
    if config.residency != "auto":
        return Choice(config.residency == "stream", "set by you")
    job = make_pack_job(source, size, config)
    if is_packed(job, cache):
        return Choice(False, "the decoded images are already in the cache")
    pixels = job.target.height * job.target.width
    needed = len(source.index) * pixels * (job.target.channels or 3)
    disk = cache or Path(tempfile.gettempdir())
    existing = next(folder for folder in (disk, *disk.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    fits = needed <= _MAX_DISK_SHARE * free
    reason = f"decoded, they take {data_size(needed)}, and {disk} has {data_size(free)} left"
    return Choice(not fits, reason, figure=needed)


def choose_residency(
    images: BatchSource, device: torch.device, configured: str = "auto", ranks: int = 1
) -> Choice[str]:
    """Choose where batches come from: the device, memory, the memory map or the source.

    Args:
        images: The decoded images, or what decodes them for every batch.
        ranks: The number of ranks; those on one machine share the memory map.

    Raises:
        ConfigError: If the setting is impossible on this device.
    """
    if not isinstance(images, Images):
        return Choice("stream", "each batch is decoded from DATA")
    if configured == "device" and device.type == "cpu":
        raise ConfigError(
            "--residency device needs an accelerator; on the CPU use auto, memory, map or stream"
        )
    size = images.nbytes
    if configured != "auto":
        value, reason = configured, "set by you"
    elif device.type != "cpu" and _fits(size, device):
        value, reason = "device", f"fits on {device}"
    elif ranks > 1:
        value, reason = "map", f"{ranks} ranks share it"
    elif device.type == "cpu" and size > _MAX_COPIED_BYTES:
        value, reason = "map", "read from the cache file, which the system keeps in free memory"
    elif _fits(size, torch.device("cpu")):
        value, reason = "memory", "fits in memory"
    else:
        value, reason = "map", "too large to copy to memory"
    return Choice(value, f"{reason}; {data_size(size)}", figure=size)


def place_images(images: BatchSource, residency: str, device: torch.device) -> BatchSource:
    """Return the images, moved to where they are kept."""
    if not isinstance(images, Images):
        return images
    if residency == "device":
        return images.to(device)
    return images.copied() if residency == "memory" else images


def _fits(size: int, device: torch.device) -> bool:
    return size < _MAX_MEMORY_SHARE * free_memory_bytes(device)
