"""Fixed filters for a first layer: the cosines of JPEG, scaled to whiten an image's patches.

Neighbouring pixels are alike, so the principal directions of patches are nearly cosines, whatever
the images show (Ahmed, Natarajan and Rao, 1974). Responses of equal size let the layers behind
learn from the first step on, and nothing is computed backwards through a fixed layer.
"""

import math

import torch
from torch import Tensor

_CORRELATION = 0.95  # of neighbouring pixels, and of neighbouring channels
_EPSILON = 1e-3  # a variance that keeps the finest patterns, mostly noise, from being blown up


def cosine_patches(channels: int, side: int, count: int) -> Tensor:
    """The most varying patterns of patches (C, side, side), scaled to responses of deviation 1.

    For pixels of mean 0 and deviation 1. All of them, then all their negatives: float32
    (2 count, C, side, side), count <= C * side * side.
    """
    colours, lines = _cosines(channels), _cosines(side)
    of_line = _variances(lines)
    variances = _variances(colours)[:, None, None] * (of_line[:, None] * of_line)
    patterns = torch.einsum("ac,by,dx->abdcyx", colours, lines, lines).flatten(0, 2)
    order = variances.flatten().argsort(descending=True, stable=True)[:count]
    scale = (variances.flatten()[order] + _EPSILON).rsqrt()
    chosen = patterns[order] * scale[:, None, None, None]
    return torch.cat([chosen, -chosen]).float()


def _cosines(size: int) -> Tensor:
    """The orthonormal cosine transform: float64 (frequency, place)."""
    places = torch.arange(size, dtype=torch.float64)
    rows = torch.cos(math.pi / size * places[:, None] * (places + 0.5))
    unit: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return unit


def _variances(rows: Tensor) -> Tensor:
    """Of the response to each row (n, size), where correlation falls with distance."""
    places = torch.arange(rows.shape[1], dtype=torch.float64)
    correlations = _CORRELATION ** (places[:, None] - places).abs()
    variances: Tensor = (rows @ correlations * rows).sum(dim=1)
    return variances
