"""Comparison of two images: near-duplicates, laid over each other, agree everywhere.

m pairs, L layers, C channels, S pixels a side.
"""

from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.data.duplicates.candidates import SIDE, Pairs, View, resize_to_planes
from onsight.data.pack import Pack

_PAIRS = 64  # pairs per batch
_COARSE = 4  # pixels a side of the blocks that are averaged once pairs are aligned
_MAX_MOVE = 0.12  # largest shift or scale change by alignment, as a fraction of half a side
_MAX_DIFFERENCE = 14.0  # grey levels, mean of a block; a changed object exceeds it
_MAX_UNLIKE = 0.13  # largest ratio of fine difference to fine detail
_MAX_UNLIKE_CROPPED = 0.2  # the same ratio for cropped copies
_MIN_DETAIL = 2.0  # grey levels; with less detail, images must agree as a whole
_MIN_CONTRAST = 3.0  # grey levels, for images that agree as a whole
_MAX_UNLIKE_WHOLE = 0.05  # largest ratio of difference to contrast
_MAX_FINE_DIFFERENCE = 1.5  # grey levels; re-encoding stays below
_CROPPED = 0.015  # fraction of a side beyond which a copy counts as cropped

_ALIGNMENT_ROUNDS = 4
_MIN_CURVATURE = 1e-3  # fraction of the mean curvature; keeps flat images in place

Kind = Literal["resized or re-encoded", "cropped", "mirrored"]


class NearDuplicate(NamedTuple):
    """Two images with the same content, by image number."""

    first: int  # the lower image number
    second: int
    kind: Kind
    difference: float  # grey levels in the worst block


def compare_pairs(pack: Pack, pairs: Pairs, view: View, pool: Executor) -> Iterator[NearDuplicate]:
    """Yield the pairs that are near-duplicates when the first image is seen in this view."""

    def compare_batch(first: int) -> list[NearDuplicate]:
        return [*_compare_batch(pack, pairs[first : first + _PAIRS], view)]

    for found in pool.map(compare_batch, range(0, len(pairs), _PAIRS)):
        yield from found


def align(moving: Tensor, fixed: Tensor) -> Tensor:
    """Find the scale and shift of each axis that lay moving over fixed, both float32 (m, S, S).

    The method of Lucas and Kanade (1981): each step follows from the remaining difference and the
    slopes of the image. Returns float32 (m, 4): scale and shift across, scale and shift down, where
    the image goes from -1 to 1.
    """
    side = moving.shape[-1]
    across = _pixel_centres(side).expand(side, side)
    down = across.T
    layers = torch.stack([moving, _slope(moving), _slope(moving.mT).mT], 1)
    alignment = torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(len(moving), 1)
    for _ in range(_ALIGNMENT_ROUNDS):
        laid, slope_across, slope_down = apply_alignment(layers, alignment).unbind(1)
        gradients = torch.stack(
            [slope_across * across, slope_across, slope_down * down, slope_down], -1
        )
        gradients = gradients.flatten(1, 2) * _overlap(alignment, side).flatten(1).unsqueeze(2)
        curvature = gradients.mT @ gradients
        size = curvature.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1.0)
        curvature = curvature + _MIN_CURVATURE * size[:, None, None] * torch.eye(4)
        wanted = gradients.mT @ (fixed - laid).flatten(1).unsqueeze(2)
        alignment = alignment + torch.linalg.solve(curvature, wanted)[..., 0]
    return alignment


def apply_alignment(layers: Tensor, alignment: Tensor) -> Tensor:
    """Resample images (m, L, S, S) by scales and shifts (m, 4)."""
    zero = torch.zeros(len(alignment))
    scale_across, shift_across, scale_down, shift_down = alignment.unbind(1)
    rows = torch.stack([scale_across, zero, shift_across], 1)
    columns = torch.stack([zero, scale_down, shift_down], 1)
    grid = F.affine_grid(torch.stack([rows, columns], 1), list(layers.shape), align_corners=False)
    return F.grid_sample(layers, grid, padding_mode="border", align_corners=False)


def _compare_batch(pack: Pack, pairs: Pairs, view: View) -> Iterator[NearDuplicate]:
    moving = resize_to_planes(view.of(pack.take(pairs[:, 0])), SIDE)
    fixed = resize_to_planes(pack.take(pairs[:, 1]), SIDE)
    alignment = align(_halve(moving), _halve(fixed))
    both = _overlap(alignment, SIDE).unsqueeze(1)
    moved = (alignment - torch.tensor([1.0, 0.0, 1.0, 0.0])).abs().amax(1)
    # Compare coarsely, since sharp edges that are a tenth of a pixel apart differ much.
    covered = (F.avg_pool2d(both, _COARSE) > 0.99).float()
    moving = F.avg_pool2d(apply_alignment(moving, alignment), _COARSE)
    fixed = F.avg_pool2d(fixed, _COARSE)
    difference = (moving - fixed) * covered
    worst = F.avg_pool2d(difference.abs(), 2).amax((1, 2, 3))
    inner = 1 - F.max_pool2d(1 - covered, 3, stride=1)
    detail = _root_mean_square(_fine(fixed), inner)
    fine_difference = _root_mean_square(_fine(moving - fixed), inner)
    pixels = covered.sum((2, 3), keepdim=True).clamp(min=1)
    mean = (fixed * covered).sum((2, 3), keepdim=True) / pixels
    contrast = _root_mean_square(fixed - mean, covered)
    agrees_as_whole = (contrast >= _MIN_CONTRAST) & (fine_difference <= _MAX_FINE_DIFFERENCE)
    agrees_as_whole &= _root_mean_square(difference, covered) <= _MAX_UNLIKE_WHOLE * contrast
    for row in ((moved <= _MAX_MOVE) & (worst <= _MAX_DIFFERENCE)).nonzero()[:, 0].tolist():
        kind = _kind(view, alignment[row])
        limit = _MAX_UNLIKE_CROPPED if kind == "cropped" else _MAX_UNLIKE
        agrees_in_detail = (
            detail[row] >= _MIN_DETAIL and fine_difference[row] <= limit * detail[row]
        )
        if agrees_in_detail or (kind != "cropped" and agrees_as_whole[row]):
            first, second = sorted(pairs[row].tolist())
            yield NearDuplicate(first, second, kind, round(float(worst[row]), 2))


def _kind(view: View, alignment: Tensor) -> Kind:
    """Return the kind of change between two images, given their alignment."""
    if view.is_mirrored:
        return "mirrored"
    scale_across, shift_across, scale_down, shift_down = alignment.tolist()
    edges = []
    for low, high, scale, shift in (
        (view.left, view.right, scale_across, shift_across),
        (view.top, view.bottom, scale_down, shift_down),
    ):
        middle, half = low + (high - low) * (1 + shift) / 2, (high - low) * scale / 2
        edges += [middle - half, 1 - middle - half]
    return "cropped" if max(map(abs, edges)) > _CROPPED else "resized or re-encoded"


def _halve(images: Tensor) -> Tensor:
    """Return grey images of half the side (m, S / 2, S / 2), enough to find a shift by."""
    return F.avg_pool2d(images.mean(1), 2)


def _fine(images: Tensor) -> Tensor:
    """Subtract the surroundings of each inner pixel of (m, C, S, S): (m, C, S - 2, S - 2)."""
    return images[..., 1:-1, 1:-1] - F.avg_pool2d(images, 3, stride=1)


def _root_mean_square(images: Tensor, covered: Tensor) -> Tensor:
    """Return the root mean square of (m, C, S, S) where covered (m, 1, S, S) is 1: (m,)."""
    total = (images**2 * covered).sum((1, 2, 3))
    return (total / (covered.sum((1, 2, 3)) * images.shape[1]).clamp(min=1)).sqrt()


def _overlap(alignment: Tensor, side: int) -> Tensor:
    """Mark where the moving image has pixels for the fixed one: float32 (m, S, S) of 0 and 1."""
    centres = _pixel_centres(side)
    scale_across, shift_across, scale_down, shift_down = alignment.unsqueeze(2).unbind(1)
    across = (scale_across * centres + shift_across).abs() <= 1
    down = (scale_down * centres + shift_down).abs() <= 1
    return (down.unsqueeze(2) & across.unsqueeze(1)).float()


def _pixel_centres(side: int) -> Tensor:
    """Return the positions of pixels, from -1 to 1."""
    return (2 * torch.arange(side) + 1) / side - 1


def _slope(images: Tensor) -> Tensor:
    """Return the horizontal slope of images (m, S, S), per unit of position."""
    padded = F.pad(images, (1, 1), mode="replicate")
    return (padded[..., 2:] - padded[..., :-2]) * images.shape[-1] / 4
