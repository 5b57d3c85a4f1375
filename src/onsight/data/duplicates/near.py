"""Near-duplicates: pictures that show the same, resized, re-encoded, slightly cropped or mirrored.

n pictures, m pairs, B batch, H height, W width, C channels.
"""

from collections.abc import Callable, Iterator, Sequence
from collections import Counter
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from onsight.data.duplicates.alignment import align, inside, sample
from onsight.data.duplicates.candidates import Pairs, Signatures, SortedLists
from onsight.data.duplicates.groups import Groups
from onsight.data.duplicates.signatures import (
    BITS,
    MIRRORED,
    WHOLE,
    View,
    cropped_views,
    frequencies,
    planes,
)
from onsight.data.pack import Pack
from onsight.data.split import different

_BATCH = 1024  # pictures
_PAIRS = 256  # pairs laid over each other at once
_SAMPLE = 8192  # pictures are numbered by digest, so the first are a fair sample
_FEWEST = 64  # of which there is a usual picture
_NOISE = 256.0  # of a frequency: one grey level to and fro
_FAR = 0.4  # of a picture's frequencies by which candidates may differ
_MOST = 8  # candidates of each picture, the nearest

_SIDE, _COARSE = 64, 4  # pixels in which pairs are laid over each other, and compared after that
_MOVED = 0.12  # of half a side: views leave no more to the alignment
_WORST = 14.0  # grey levels, mean of any eighth of each side: one changed object exceeds it
_UNLIKE, _UNLIKE_CROPPED = 0.13, 0.2  # of what differs to what there is to see, in fine detail
_DETAIL = 2.0  # grey levels: with less of it, pictures must agree as a whole
_CONTRAST, _UNLIKE_WHOLE, _FINE = 3.0, 0.05, 1.5  # to do so; the last is what encoding leaves
_CROPPED = 0.015  # of a side

Kind = Literal["resized or re-encoded", "cropped", "mirrored"]


class NearDuplicate(NamedTuple):
    """Two pictures by number, the lower first; difference: grey levels in the worst block."""

    first: int
    second: int
    kind: Kind
    difference: float


def find_near_duplicates(
    pack: Pack, progress: Callable[[int], None] = lambda done: None
) -> list[NearDuplicate]:
    """Pairs of pictures that show the same but are not identical, by picture number.

    Of identical pictures only one is compared. A mirrored copy counts only if it is not cropped.
    progress: called with counts of pictures.
    """
    _, kept = different(pack.digests)
    candidates = _candidates(pack, kept, progress)
    return _connecting(sorted(_verified(pack, candidates), key=lambda one: one.difference))


def _connecting(found: Sequence[NearDuplicate]) -> list[NearDuplicate]:
    """Those pairs, the most alike first, that connect pictures not connected before.

    In a group of many, each picture is named with one that is most like it, not with all.
    """
    tree = Groups()
    return sorted(one for one in found if tree.join(one.first, one.second))


def _candidates(
    pack: Pack, kept: NDArray[np.int64], progress: Callable[[int], None]
) -> list[tuple[int, int, View]]:
    """Pairs (query, picture) by number that may be alike, and the view of the query."""
    whole = torch.cat([frequencies(images) for images in _batches(pack, kept)])
    some = whole[:_SAMPLE] if len(whole) >= _FEWEST else torch.zeros(1, BITS)
    medians = some.quantile(0.5, dim=0)
    # What a picture has nothing of must not be decided by noise.
    borders = torch.where(medians.abs() < _NOISE, _NOISE, medians)
    lists = SortedLists(_signatures(whole, borders))
    near: dict[tuple[int, int], tuple[float, int, View]] = {}
    views = [WHOLE, MIRRORED, *cropped_views()]
    for first, images in zip(range(0, len(kept), _BATCH), _batches(pack, kept), strict=True):
        for view in views:
            queries = whole[first : first + _BATCH] if view == WHOLE else frequencies(view.of(images))
            pairs = lists.near(_signatures(queries, borders), first)
            for (query, picture), far in _near_enough(queries, whole, pairs, first):
                pair = min(query, picture), max(query, picture)
                if pair not in near or far < near[pair][0]:
                    near[pair] = far, query, view
        progress(len(images))
    return [
        (int(kept[query]), int(kept[sum(pair) - query]), view)
        for pair, (_, query, view) in _nearest(near)
    ]


def _signatures(spectra: Tensor, borders: Tensor) -> Signatures:
    return np.packbits((spectra > borders).numpy(), axis=1)


def _near_enough(
    queries: Tensor, whole: Tensor, pairs: Pairs, first: int
) -> Iterator[tuple[tuple[int, int], float]]:
    """The pairs whose frequencies are alike, and by what share they differ. queries: from first."""
    theirs = whole[pairs[:, 1]]
    size = theirs.norm(dim=1).clamp(min=_NOISE)
    far = (queries[pairs[:, 0] - first] - theirs).norm(dim=1) / size
    for row in (far <= _FAR).nonzero()[:, 0].tolist():
        query, picture = pairs[row].tolist()
        yield (query, picture), float(far[row])


def _nearest(
    near: dict[tuple[int, int], tuple[float, int, View]],
) -> Iterator[tuple[tuple[int, int], tuple[float, int, View]]]:
    """Of each picture's pairs the nearest."""
    counts: Counter[int] = Counter()
    for pair, found in sorted(near.items(), key=lambda one: one[1][0]):
        if min(counts[number] for number in pair) < _MOST:
            counts.update(pair)
            yield pair, found


def _batches(pack: Pack, numbers: NDArray[np.int64]) -> Iterator[Tensor]:
    for first in range(0, len(numbers), _BATCH):
        yield _images(pack, numbers[first : first + _BATCH])


def _images(pack: Pack, numbers: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(pack.pixels[pack.rows[numbers]])


def _verified(pack: Pack, candidates: list[tuple[int, int, View]]) -> Iterator[NearDuplicate]:
    """Those candidates that are near-duplicates when laid over each other."""
    by_view: dict[View, list[tuple[int, int]]] = {}
    for query, picture, view in candidates:
        by_view.setdefault(view, []).append((query, picture))
    for view, pairs in by_view.items():
        for first in range(0, len(pairs), _PAIRS):
            some = np.array(pairs[first : first + _PAIRS], np.int64)
            yield from _compared(pack, some, view)


def _compared(pack: Pack, pairs: Pairs, view: View) -> Iterator[NearDuplicate]:
    moving = planes(view.of(_images(pack, pairs[:, 0])), _SIDE)
    fixed = planes(_images(pack, pairs[:, 1]), _SIDE)
    laid = align(moving.mean(1), fixed.mean(1))
    both = inside(laid, _SIDE).unsqueeze(1)
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
        most = _UNLIKE_CROPPED if kind == "cropped" else _UNLIKE
        is_alike = detail[row] >= _DETAIL and fine[row] <= most * detail[row]
        if is_alike or (kind != "cropped" and smooth[row]):
            first, second = sorted(pairs[row].tolist())
            yield NearDuplicate(first, second, kind, round(float(worst[row]), 2))


def _fine(pictures: Tensor) -> Tensor:
    """What is left of (m, C, S, S) without what surrounds each inner pixel: (m, C, S-2, S-2)."""
    return pictures[..., 1:-1, 1:-1] - F.avg_pool2d(pictures, 3, stride=1)


def _size(pictures: Tensor, seen: Tensor) -> Tensor:
    """The root mean square of (m, C, S, S) where seen (m, 1, S, S) is 1: (m,)."""
    total = (pictures**2 * seen).sum((1, 2, 3))
    return (total / (seen.sum((1, 2, 3)) * pictures.shape[1]).clamp(min=1)).sqrt()


def _kind(view: View, laid: Tensor) -> Kind:
    """What was done to one of two pictures, from how one lies over the other."""
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
