"""Converts images to the size and channels of a model, by stretching, cropping or padding.

H height, W width, C channels.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from onsight.data.pixels import Colour, Pixels, to_pillow

Fit = Literal["stretch", "crop", "pad"]

_MAX_BITS = 22  # maximum fraction bits of weights, so that weighted sums of bytes fit into 32 bits
_WEIGHT_LIMIT = 1 << 15  # weights are signed 16-bit integers


@dataclass(frozen=True)
class ImageFormat:
    """The format that images are converted to: uint8 (height, width, channels).

    Attributes:
        height: In pixels.
        width: In pixels.
        channels: 1 for grey, 3 for colour.
        fit: How to change the size.
        background: The colour behind transparent images and around padded ones.
        pixel_limit: The maximum number of pixels; larger images are rejected.
        input_size: The (height, width) of the model's input, if it is different.
        decoded_for: The (height, width) that determines how JPEGs are decoded, if it is not that of
            the input: several models can share packed images.
    """

    height: int
    width: int
    channels: int
    fit: Fit = "stretch"
    background: Colour = (255, 255, 255)
    pixel_limit: int = 64_000_000
    input_size: tuple[int, int] | None = None
    decoded_for: tuple[int, int] | None = None

    @property
    def model_size(self) -> tuple[int, int]:
        """The (height, width) of the model's input."""
        return self.input_size or (self.height, self.width)

    @property
    def decoded_size(self) -> tuple[int, int]:
        """The (height, width) that determines how JPEGs are decoded."""
        return self.decoded_for or self.model_size

    def for_input(self, size: tuple[int, int]) -> "ImageFormat":
        """Return the format of the same images for a model whose input has this size."""
        input_size = None if size == (self.height, self.width) else size
        decoded_for = None if size == self.decoded_size else self.decoded_size
        return replace(self, input_size=input_size, decoded_for=decoded_for)

    def facts(self) -> dict[str, Any]:
        """Return the format as JSON values, for files and cache keys."""
        facts = {**vars(self), "background": list(self.background)}
        for name in ("input_size", "decoded_for"):
            size = facts.pop(name)
            facts |= {name: list(size)} if size else {}
        return facts


def fit(pixels: Pixels, target: ImageFormat) -> Pixels:
    """Convert decoded pixels (H, W, C) to a format."""
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
        colour = background_colour(target)
        fitted = ImageOps.pad(image, size, Image.Resampling.BILINEAR, color=colour)
    return np.asarray(fitted, np.uint8).reshape(target.height, target.width, target.channels)


def background_colour(target: ImageFormat) -> tuple[int, ...]:
    """Return the background colour in the channels of a format."""
    return target.background if target.channels == 3 else (_luma(target.background),)


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """Convert pixels (H, W, 1 or 3) to grey (1) or colour (3)."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.asarray(Image.fromarray(pixels).convert("L"), np.uint8)[:, :, np.newaxis]


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize an image (H, W, C) with bilinear interpolation and antialiasing.

    The result is within 1 grey level of Pillow's, but threads do not wait for each other. Torch is
    used if it has been imported: it is faster, but importing it for a few images takes longer. The
    implementations return the same bytes.
    """
    if "torch" in sys.modules:
        return resize_with_torch(pixels, height, width)
    return resize_without_torch(pixels, height, width)


def resize_with_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize an image (H, W, C) with torch."""
    import torch
    import torch.nn.functional as F

    # torch has a fast path for one contiguous channels-last image.
    writable = np.require(pixels, requirements=["C", "W"])  # torch warns about read-only arrays
    planes = torch.from_numpy(writable).unsqueeze(0).permute(0, 3, 1, 2)
    size = (height, width)
    resized = F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    return np.asarray(resized[0].permute(1, 2, 0).numpy(), np.uint8)


def resize_without_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    """Resize an image (H, W, C) like torch: horizontally, then vertically, with integers."""
    if pixels.shape[1] != width:
        pixels = _resize_axis(pixels, 1, width)
    if pixels.shape[0] != height:
        pixels = _resize_axis(pixels, 0, height)
    return np.ascontiguousarray(pixels)


def _luma(colour: Colour) -> int:
    """Return the ITU-R 601 luma of a colour, as computed by Pillow."""
    red, green, blue = colour
    return (red * 299 + green * 587 + blue * 114) // 1000


def _resize_axis(pixels: Pixels, axis: int, size: int) -> Pixels:
    positions, weights, bits = _filter_taps(pixels.shape[axis], size)
    shape = [1, 1, 1]
    shape[axis] = size
    resized = list(pixels.shape)
    resized[axis] = size
    total = np.full(resized, 1 << (bits - 1), np.int32)  # starts at one half to round the result
    for position, weight in zip(positions.T, weights.T, strict=True):
        total += pixels.take(position, axis) * weight.reshape(shape)
    return np.asarray(np.clip(total >> bits, 0, 255), np.uint8)


def _filter_taps(before: int, after: int) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Compute the pixels that each resized pixel is a weighted sum of.

    Returns:
        Positions (after, T), their integer weights (after, T), and the fraction bits of weights.
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
    """Return the maximum fraction bits with which the largest weight fits into 16 bits."""
    bits = 0
    while bits < _MAX_BITS and int(0.5 + largest * (1 << (bits + 1))) < _WEIGHT_LIMIT:
        bits += 1
    return bits
