"""Whether two images are near-duplicates: laid over each other, they must agree everywhere.

m pairs, C channels, S pixels a side.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from onsight.data.duplicates.alignment import align, inside, sample
from onsight.data.duplicates.signatures import SIDE, View, planes
from onsight.data.duplicates.sorted_lists import Pairs
from onsight.data.pack import Pack

_PAIRS = 256  # at once
_COARSE = 4  # pixels a side that are compared as one, once pairs are laid over each other
_MOVED = 0.12  # of half a side: views leave no more to the alignment
_WORST = 14.0  # grey levels, mean of any eighth of each side: one changed object exceeds it
_OUT_OF_DISTRIBUTION, _UNLIKE_CROPPED = (
    0.13,
    0.2,
)  # of what differs to what there is to see, in fine detail
_DETAIL = 2.0  # grey levels: with less of it, images must agree as a whole
_CONTRAST, _UNLIKE_WHOLE, _FINE = 3.0, 0.05, 1.5  # to do so; the last is what encoding leaves
_CROPPED = 0.015  # of a side

Kind = Literal["resized or re-encoded", "cropped", "mirrored"]


class NearDuplicate(NamedTuple):
    """Two images by number, the lower first; difference: grey levels in the worst block."""

    first: int
    second: int
    kind: Kind
    difference: float


def near_duplicates(pack: Pack, pairs: Pairs, view: View) -> Iterator[NearDuplicate]:
    """Those pairs of images that are near-duplicates if the first is seen in this view."""
    for first in range(0, len(pairs), _PAIRS):
        yield from _compared(pack, pairs[first : first + _PAIRS], view)


def _compared(pack: Pack, pairs: Pairs, view: View) -> Iterator[NearDuplicate]:
    moving = planes(view.of(pack.take(pairs[:, 0])), SIDE)
    fixed = planes(pack.take(pairs[:, 1]), SIDE)
    laid = align(_smaller(moving), _smaller(fixed))
    both = inside(laid, SIDE).unsqueeze(1)
    moved = (laid - torch.tensor([1.0, 0.0, 1.0, 0.0])).abs().amax(1)
    # Coarsely, since sharp edges that are a tenth of a pixel apart differ much.
    seen = (F.avg_pool2d(both, _COARSE) > 0.99).float()
    moving, fixed = (F.avg_pool2d(one, _COARSE) for one in (sample(moving, laid), fixed))
    difference = (moving - fixed) * seen
    worst = F.avg_pool2d(difference.abs(), 2).amax((1, 2, 3))
    inner = 1 - F.max_pool2d(1 - seen, 3, stride=1)
    detail, fine = _size(_fine(fixed), inner), _size(_fine(moving - fixed), inner)
    mean = (fixed * seen).sum((2, 3), keepdim=True) / seen.sum((2, 3), keepdim=True).clamp(min=1)
    contrast = _size(fixed - mean, seen)
    smooth = (contrast >= _CONTRAST) & (fine <= _FINE)
    smooth &= _size(difference, seen) <= _UNLIKE_WHOLE * contrast
    for row in ((moved <= _MOVED) & (worst <= _WORST)).nonzero()[:, 0].tolist():
        kind = _kind(view, laid[row])
        most = _UNLIKE_CROPPED if kind == "cropped" else _OUT_OF_DISTRIBUTION
        is_alike = detail[row] >= _DETAIL and fine[row] <= most * detail[row]
        if is_alike or (kind != "cropped" and smooth[row]):
            first, second = sorted(pairs[row].tolist())
            yield NearDuplicate(first, second, kind, round(float(worst[row]), 2))


def _smaller(images: Tensor) -> Tensor:
    """Grey images of half the side (m, S / 2, S / 2), enough to find a shift by."""
    return F.avg_pool2d(images.mean(1), 2)


def _fine(images: Tensor) -> Tensor:
    """What is left of (m, C, S, S) without what surrounds each inner pixel: (m, C, S-2, S-2)."""
    return images[..., 1:-1, 1:-1] - F.avg_pool2d(images, 3, stride=1)


def _size(images: Tensor, seen: Tensor) -> Tensor:
    """The root mean square of (m, C, S, S) where seen (m, 1, S, S) is 1: (m,)."""
    total = (images**2 * seen).sum((1, 2, 3))
    return (total / (seen.sum((1, 2, 3)) * images.shape[1]).clamp(min=1)).sqrt()


def _kind(view: View, laid: Tensor) -> Kind:
    """What was done to one of two images, from how one lies over the other."""
    if view.is_mirrored:
        return "mirrored"
    scale_across, shift_across, scale_down, shift_down = laid.tolist()
    edges = []
    for low, high, scale, shift in (
        (view.left, view.right, scale_across, shift_across),
        (view.top, view.bottom, scale_down, shift_down),
    ):
        middle, half = low + (high - low) * (1 + shift) / 2, (high - low) * scale / 2
        edges += [middle - half, 1 - middle - half]
    return "cropped" if max(map(abs, edges)) > _CROPPED else "resized or re-encoded"
