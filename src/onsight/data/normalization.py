"""Converts uint8 images to the model's input, in training, evaluation and prediction.

B batch, H height, W width, C channels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.data.loader import Images, images_per_chunk
from onsight.data.pack import release_pages
from onsight.data.shrink import shrink
from onsight.files import disk_errors

_SAMPLE, _BATCH = 10_000, 250  # images, and those that are counted together


@dataclass(frozen=True)
class Normalization:
    """The normalization of images.

    Attributes:
        mean: The mean of each channel, for pixels from 0 to 1.
        std: The standard deviation of each channel.
        size: The (height, width) of the input, if images may be larger.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int] | None = None

    def apply(self, images: Tensor) -> Tensor:
        """Convert pixels (B, H, W, C) from 0 to 255 to float32 (B, C, H, W), channels last."""
        if self.size and images.shape[1:3] != self.size:
            images = resize_batch(images, self.size)
        mean, std = _repeat_per_pixel(self, images.shape[1:3].numel(), images.device)
        values = images.flatten(1).to(torch.float32, copy=True)
        return values.div_(255).sub_(mean).div_(std).view(images.shape).permute(0, 3, 1, 2)


def resize_batch(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize images (B, H, W, C): shrink what is larger, then enlarge what is smaller.

    Returns:
        float32 (B, *size, C) from 0 to 255.
    """
    height, width = images.shape[1:3]
    shrunk = shrink(images, (min(height, size[0]), min(width, size[1])))
    return enlarge(shrunk, size)


def shrink_images(images: Images, size: tuple[int, int], folder: Path | None = None) -> Images:
    """Shrink all images to a size (h, w), into new memory on their device.

    Pixels are those that `resize_batch` computes for every batch.

    Args:
        folder: Where to map them from a file without a name instead; they are on the CPU then.

    Raises:
        DiskError: The file cannot be written.
    """
    *before, channels = images.shape
    shape = (*size, channels)
    block = images_per_chunk(math.prod(images.shape))

    def shrink_blocks() -> Iterator[Tensor]:
        for old in images.pixels.split(block):
            yield shrink(old.view(-1, *before, channels), size).flatten(1).byte()
            release_pages(images.mapped)

    parts, mapped = shrink_blocks(), None
    rows = len(images.pixels), math.prod(shape)
    if folder:
        with disk_errors(folder, math.prod(rows)):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                for part in parts:
                    file.write(part.numpy().data)
                file.flush()
                mapped = np.memmap(file, np.uint8, "c", shape=rows)
                pixels = torch.from_numpy(mapped)
    else:
        pixels = images.pixels.new_empty(rows)
        for part, new in zip(parts, pixels.split(block), strict=True):
            new.copy_(part)
    return Images(pixels, images.rows, images.labels, shape, mapped)


def enlarge(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Enlarge float images (B, H, W, C) to a size, with bilinear interpolation."""
    if images.shape[1:3] == size:
        return images
    planes = images.permute(0, 3, 1, 2)
    enlarged = F.interpolate(planes, size, mode="bilinear", align_corners=False)
    return enlarged.permute(0, 2, 3, 1)


def measure_normalization(images: Images, ids: Tensor) -> Normalization:
    """Measure the mean and standard deviation of each channel over at most 10,000 images.

    Values are counted in a histogram, so the result does not depend on the order or the device.
    """
    channels = images.shape[2]
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.zeros(channels, 256, dtype=torch.int64)
    for batch in images.batches(torch.split(ids[:_SAMPLE], _BATCH), None):
        pixels = batch.images.reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += torch.bincount(pixels[:, channel], minlength=256).cpu()
    shares = counts.double() / counts.sum(dim=1, keepdim=True)
    mean = (shares * values).sum(dim=1)
    variance = (shares * (values - mean.unsqueeze(1)) ** 2).sum(dim=1)
    std = variance.sqrt().clamp(min=1.0)  # images of a single colour have a variance of 0
    return Normalization(
        tuple(round(value / 255, 6) for value in mean.tolist()),
        tuple(round(value / 255, 6) for value in std.tolist()),
    )


@lru_cache(maxsize=8)
def _repeat_per_pixel(
    normalization: Normalization, pixels: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Repeat mean and deviation for each pixel, which is 5 times as fast as broadcasting."""
    mean = torch.tensor(normalization.mean, device=device).repeat(pixels)
    std = torch.tensor(normalization.std, device=device).repeat(pixels)
    return mean, std
