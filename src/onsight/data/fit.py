"""Bringing images to the size and channels of the model: stretched, cropped or padded.

H height, W width, C channels.
"""

import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from onsight.data.pixels import Colour, Pixels, to_pillow

Fit = Literal["stretch", "crop", "pad"]

_MAX_BITS = 22  # fraction bits of a weight, so that a sum of weighted bytes fits into 32 bits
_WEIGHT_LIMIT = 1 << 15  # weights are signed 16-bit numbers


@dataclass(frozen=True)
class ImageFormat:
    """The format that every image is converted to: uint8 (height, width, channels)."""

    height: int
    width: int
    channels: int
    fit: Fit = "stretch"
    background: Colour = (255, 255, 255)
    pixel_limit: int = 64_000_000  # pixels; larger images are rejected
    input_size: tuple[int, int] | None = None  # (height, width) of the model, if it differs

    @property
    def model_size(self) -> tuple[int, int]:
        """(height, width) of the model's input; it alone sets the scale JPEGs are decoded at."""
        return self.input_size or (self.height, self.width)

    def facts(self) -> dict[str, Any]:
        """Return the format as plain values, for files and cache keys."""
        facts = {**vars(self), "background": list(self.background)}
        size = facts.pop("input_size")
        return facts | ({"input_size": list(size)} if size else {})


def fit(pixels: Pixels, target: ImageFormat) -> Pixels:
    """Bring decoded pixels to the target's size and channels."""
    pixels = to_channels(pixels, target.channels)
    if pixels.shape[:2] == (target.height, target.width):
        return pixels
    if target.fit == "stretch":
        return resize(pixels, target.height, target.width)
    image = to_pillow(pixels)
    size = (target.width, target.height)
    if target.fit == "crop":
        fitted = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    else:
        colour = background_of(target)
        fitted = ImageOps.pad(image, size, Image.Resampling.BILINEAR, color=colour)
    return np.asarray(fitted, np.uint8).reshape(target.height, target.width, target.channels)


def background_of(target: ImageFormat) -> tuple[int, ...]:
    """Return the background colour in the target's channels."""
    return target.background if target.channels == 3 else (_luma(target.background),)


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """Convert pixels (H, W, 1 or 3) to grey (1) or colour (3)."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.asarray(Image.fromarray(pixels).convert("L"), np.uint8)[:, :, np.newaxis]


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize a whole image (H, W, C), bilinear with antialiasing.

    Within 1 grey level of Pillow's result, but threads do not wait for each other. Torch is used
    if it is loaded already: it is faster, but loading it would take longer than the images of a
    program that runs without it. Both ways return the same bytes.
    """
    if "torch" in sys.modules:
        return resize_with_torch(pixels, height, width)
    return resize_without_torch(pixels, height, width)


def resize_with_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize by torch's interpolation."""
    import torch
    import torch.nn.functional as F

    # torch has a fast path for a contiguous batch of one image whose strides are channels last.
    owned = np.require(pixels, requirements=["C", "W"])  # torch warns about read-only arrays
    planes = torch.from_numpy(owned).unsqueeze(0).permute(0, 3, 1, 2)
    size = (height, width)
    resized = F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    return np.asarray(resized[0].permute(1, 2, 0).numpy(), np.uint8)


def resize_without_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize as torch does bytes: horizontally, then vertically, each in whole numbers."""
    if pixels.shape[1] != width:
        pixels = _resize_axis(pixels, 1, width)
    if pixels.shape[0] != height:
        pixels = _resize_axis(pixels, 0, height)
    return np.ascontiguousarray(pixels)


def _luma(colour: Colour) -> int:
    """Return the ITU-R 601 luma of a colour, as Pillow converts pixels."""
    red, green, blue = colour
    return (red * 299 + green * 587 + blue * 114) // 1000


def _resize_axis(pixels: Pixels, axis: int, size: int) -> Pixels:
    positions, weights, bits = _filter_taps(pixels.shape[axis], size)
    shape = [1, 1, 1]
    shape[axis] = size
    resized = list(pixels.shape)
    resized[axis] = size
    total = np.full(resized, 1 << (bits - 1), np.int32)  # one half, so that the shift below rounds
    for position, weight in zip(positions.T, weights.T, strict=True):
        total += pixels.take(position, axis) * weight.reshape(shape)
    return np.asarray(np.clip(total >> bits, 0, 255), np.uint8)


def _filter_taps(before: int, after: int) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Return the positions (after, T) that each new pixel is made of, and their weights.

    Weights are whole numbers; the last value returned is the number of their fraction bits.
    """
    scale = before / after
    reach = max(scale, 1.0)
    centres = scale * (np.arange(after) + 0.5)
    starts = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    ends = np.minimum((centres + reach + 0.5).astype(np.int64), before)
    positions = starts[:, np.newaxis] + np.arange((ends - starts).max())
    shares = np.maximum(1 - np.abs(positions - centres[:, np.newaxis] + 0.5) * (1 / reach), 0)
    shares[positions >= ends[:, np.newaxis]] = 0
    shares /= shares.sum(axis=1, keepdims=True)
    bits = _fraction_bits(float(shares.max()))
    weights = np.floor(shares * (1 << bits) + 0.5).astype(np.int32)
    return np.minimum(positions, before - 1), weights, bits


def _fraction_bits(largest: float) -> int:
    """Return the most bits of fraction with which the largest weight is a 16-bit number."""
    bits = 0
    while bits < _MAX_BITS and int(0.5 + largest * (1 << (bits + 1))) < _WEIGHT_LIMIT:
        bits += 1
    return bits
