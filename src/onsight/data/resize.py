"""Images at another size, bilinear with antialiasing: by torch, or bit for bit without it.

Within 1 grey level of Pillow's result; unlike Pillow's, threads do not wait for each other.
"""

import sys

import numpy as np
from numpy.typing import NDArray

from onsight.data.pillow_pixels import Pixels

_MOST_BITS = 22  # of a weight's fraction, so that a sum of weighted bytes fits into 32
_WEIGHT_LIMIT = 1 << 15  # weights are signed 16-bit numbers


def resize(pixels: Pixels, height: int, width: int) -> Pixels:
    """All of an image (H, W, C) at another height and width.

    Both ways give the same bytes. Torch is the faster one, but where a model runs without it,
    loading it would take longer than the images.
    """
    way = _by_torch if "torch" in sys.modules else resize_without_torch
    return way(pixels, height, width)


def _by_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    import torch
    import torch.nn.functional as F

    # torch has a fast path for a contiguous batch of one whose strides are channels last.
    owned = np.require(pixels, requirements=["C", "W"])  # torch warns about read-only arrays
    planes = torch.from_numpy(owned).unsqueeze(0).permute(0, 3, 1, 2)
    size = (height, width)
    resized = F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    return np.asarray(resized[0].permute(1, 2, 0).numpy(), np.uint8)


def resize_without_torch(pixels: Pixels, height: int, width: int) -> Pixels:
    """What torch's interpolate gives for bytes: rows, then columns, each in whole numbers."""
    if pixels.shape[1] != width:
        pixels = _along(pixels, 1, width)
    if pixels.shape[0] != height:
        pixels = _along(pixels, 0, height)
    return np.ascontiguousarray(pixels)


def _along(pixels: Pixels, axis: int, size: int) -> Pixels:
    """An image with one axis brought to another size."""
    places, weights, bits = _taps(pixels.shape[axis], size)
    shape = [1, 1, 1]
    shape[axis] = size
    resized = list(pixels.shape)
    resized[axis] = size
    total = np.full(resized, 1 << (bits - 1), np.int32)  # half, so that the shift below rounds
    for place, weight in zip(places.T, weights.T, strict=True):
        total += pixels.take(place, axis) * weight.reshape(shape)
    return np.asarray(np.clip(total >> bits, 0, 255), np.uint8)


def _taps(before: int, after: int) -> tuple[NDArray[np.int64], NDArray[np.int32], int]:
    """Places (after, T) that each new pixel is made of, their weights, and the weights' bits."""
    scale = before / after
    reach = max(scale, 1.0)
    centres = scale * (np.arange(after) + 0.5)
    starts = np.maximum((centres - reach + 0.5).astype(np.int64), 0)
    ends = np.minimum((centres + reach + 0.5).astype(np.int64), before)
    places = starts[:, np.newaxis] + np.arange((ends - starts).max())
    shares = np.maximum(1 - np.abs(places - centres[:, np.newaxis] + 0.5) * (1 / reach), 0)
    shares[places >= ends[:, np.newaxis]] = 0
    shares /= shares.sum(axis=1, keepdims=True)
    bits = _bits(float(shares.max()))
    weights = np.floor(shares * (1 << bits) + 0.5).astype(np.int32)
    return np.minimum(places, before - 1), weights, bits


def _bits(largest: float) -> int:
    """The most bits of fraction with which the largest weight is still a 16-bit number."""
    bits = 0
    while bits < _MOST_BITS and int(0.5 + largest * (1 << (bits + 1))) < _WEIGHT_LIMIT:
        bits += 1
    return bits
