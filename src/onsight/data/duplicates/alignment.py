"""Laying one image over another: the shift and scale of each axis under which they agree best.

m pairs, S pixels a side.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_ROUNDS = 4
_LEAST_CURVATURE = 1e-3  # of the mean: keeps flat images where they are


def align(moving: Tensor, fixed: Tensor) -> Tensor:
    """For each axis, scale and shift that lay moving over fixed, both float32 (m, S, S).

    The method of Lucas and Kanade (1981): from a step's remaining difference and the slopes of the
    image follows the next step. Returns float32 (m, 4): scale and shift across, scale and shift
    down, where the image goes from -1 to 1.
    """
    side = moving.shape[-1]
    across = _centres(side).expand(side, side)
    down = across.T
    layers = torch.stack([moving, _slope(moving), _slope(moving.mT).mT], 1)
    found = torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(len(moving), 1)
    for _ in range(_ROUNDS):
        laid, slope_across, slope_down = sample(layers, found).unbind(1)
        ways = torch.stack([slope_across * across, slope_across, slope_down * down, slope_down], -1)
        ways = ways.flatten(1, 2) * inside(found, side).flatten(1).unsqueeze(2)
        curvature = ways.mT @ ways
        size = curvature.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1.0)
        curvature = curvature + _LEAST_CURVATURE * size[:, None, None] * torch.eye(4)
        wanted = ways.mT @ (fixed - laid).flatten(1).unsqueeze(2)
        found = found + torch.linalg.solve(curvature, wanted)[..., 0]
    return found


def sample(layers: Tensor, found: Tensor) -> Tensor:
    """Images (m, L, S, S) laid by scales and shifts (m, 4)."""
    zero = torch.zeros(len(found))
    scale_across, shift_across, scale_down, shift_down = found.unbind(1)
    rows = torch.stack([scale_across, zero, shift_across], 1)
    columns = torch.stack([zero, scale_down, shift_down], 1)
    grid = F.affine_grid(torch.stack([rows, columns], 1), list(layers.shape), align_corners=False)
    return F.grid_sample(layers, grid, padding_mode="border", align_corners=False)


def inside(found: Tensor, side: int) -> Tensor:
    """Where the moving image has pixels for the fixed one: float32 (m, S, S) of 0 and 1."""
    centres = _centres(side)
    scale_across, shift_across, scale_down, shift_down = found.unsqueeze(2).unbind(1)
    across = (scale_across * centres + shift_across).abs() <= 1
    down = (scale_down * centres + shift_down).abs() <= 1
    return (down.unsqueeze(2) & across.unsqueeze(1)).float()


def _centres(side: int) -> Tensor:
    """Where pixels are, from -1 to 1."""
    return (2 * torch.arange(side) + 1) / side - 1


def _slope(images: Tensor) -> Tensor:
    """How fast images (m, S, S) change across, for a way of 1."""
    padded = F.pad(images, (1, 1), mode="replicate")
    return (padded[..., 2:] - padded[..., :-2]) * images.shape[-1] / 4
