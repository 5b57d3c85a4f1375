"""Shrinks images so that every device, precision and runtime computes the same pixels, to the bit.

Each axis is one matrix product with a triangle filter, the filter of bilinear resizing with
antialiasing. Pixels are whole numbers up to 255 (8 bits). Weights are multiples of 1/1024 that are
not negative and sum to 1 (11 bits, as many as TF32 has), so every partial sum needs at most 18 of
the 24 bits of float32: nothing is rounded, in any order of summation. The sums are then rounded to
whole numbers again.

B batch, H and W before shrinking, h and w after, C channels.
"""

from functools import lru_cache

import torch
from torch import Tensor

_CPU = torch.device("cpu")
_ONE = 1024  # a weight of 1 as a whole number


def shrink(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Shrink images to a size that is at most theirs in both axes.

    Args:
        images: Pixels (B, H, W, C) from 0 to 255. If they are not whole numbers, for example after
            an augmentation, different devices may round them differently.
        size: (h, w).

    Returns:
        Whole numbers from 0 to 255, float32 (B, h, w, C).
    """
    device = images.device
    height, width = images.shape[1:3]
    with torch.autocast(device.type, enabled=False):  # it would round weights to bf16
        return apply_weights(images, *_cached_weights((height, width), size, device))


def apply_weights(images: Tensor, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """Shrink images (B, H, W, C) with both results of `filter_weights`. Autocast must be off."""
    values = images.float()
    if rows is not None:
        values = (rows @ values.flatten(2)).round_().unflatten(2, images.shape[2:])
    if columns is not None:
        # One product of two matrices is faster than a small product for each image.
        lines = values.transpose(2, 3)
        sums = lines.flatten(0, 2) @ columns
        values = sums.round_().unflatten(0, lines.shape[:3]).transpose(2, 3)
    return values


def filter_weights(
    before: tuple[int, int], after: tuple[int, int], device: torch.device = _CPU
) -> tuple[Tensor | None, Tensor | None]:
    """Return the weights that shrink images from a size (H, W) to (h, w).

    Returns:
        Weights of rows (h, H) and of columns (W, w), float32; None for an axis that stays as it is.
    """
    rows, columns = (_triangles(*sides, device) for sides in zip(before, after, strict=True))
    return rows, None if columns is None else columns.T.contiguous()


_cached_weights = lru_cache(maxsize=32)(filter_weights)


def _triangles(before: int, after: int, device: torch.device) -> Tensor | None:
    """Return weights (after, before), or None if the sides are equal.

    Weights are rounded by rounding their cumulative sums, which keeps their sum. Halves are rounded
    to even, so the matrix is symmetric: mirrored images shrink to mirrored images.
    """
    if after == before:
        return None
    if after > before:
        raise ValueError(f"{before} pixels cannot shrink to {after}")
    # In units of 1 / (2 * after) pixels, positions and distances are whole numbers.
    centres = (2 * torch.arange(after).unsqueeze(1) + 1) * before
    positions = (2 * torch.arange(before) + 1) * after
    heights = (2 * before - (centres - positions).abs()).clamp(min=0)
    sums = heights.cumsum(dim=1).double()
    sums = (sums * _ONE / sums[:, -1:]).round()
    return (sums.diff(dim=1, prepend=sums.new_zeros(after, 1)) / _ONE).float().to(device)
