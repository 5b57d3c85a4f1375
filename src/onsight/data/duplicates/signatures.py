"""Signatures: the signs of an image's lowest frequencies, nearly equal where images look alike.

B batch, H height, W width, C channels, S pixels a side; shares of a side go from 0 to 1.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 96
SIDE = 64  # pixels of the grey images that frequencies are computed from
_SCALED = 32  # pixels that every view of them is scaled to
_HIGHEST = 14  # frequencies of a side that the lowest of both together can have


class View(NamedTuple):
    """A part of an image, perhaps mirrored: what a copy may show of it.

    top, left, bottom, right: the part's edges as shares of the image's sides.
    """

    top: float = 0.0
    left: float = 0.0
    bottom: float = 1.0
    right: float = 1.0
    is_mirrored: bool = False

    def of(self, images: Tensor) -> Tensor:
        """This view of images (B, H, W, C)."""
        height, width = images.shape[1:3]
        rows = slice(round(self.top * height), round(self.bottom * height))
        columns = slice(round(self.left * width), round(self.right * width))
        part = images[:, rows, columns]
        return part.flip(2) if self.is_mirrored else part


WHOLE, MIRRORED = View(), View(is_mirrored=True)
_CUTS = (0.05, 0.1)  # of a side, for the parts that a slightly cropped copy may show


def cropped_views() -> list[View]:
    """Parts of an image: cut at one side, at two that meet, or at all four."""
    found = []
    for cut in _CUTS:
        edges = ((0.0, 1.0), (0.0, 1 - cut), (cut, 1.0))
        found += [
            View(top, left, bottom, right)
            for top, bottom in edges
            for left, right in edges
            if (top, left, bottom, right) != WHOLE[:4]
        ]
        found.append(View(cut / 2, cut / 2, 1 - cut / 2, 1 - cut / 2))
    return found


def planes(images: Tensor, side: int) -> Tensor:
    """Images uint8 (B, H, W, C) as float32 (B, C, side, side), 0 to 255."""
    size = (side, side)
    planes = images.permute(0, 3, 1, 2).float()
    return F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)


def frequencies(grey: Tensor, view: View = WHOLE) -> Tensor:
    """The lowest frequencies but the mean of a view of float32 (B, 64, 64): float32 (B, 96)."""
    down = _cosines(view.top, view.bottom, False)
    across = _cosines(view.left, view.right, view.is_mirrored)
    rows, columns = _lowest()
    return (down @ grey @ across.T)[:, rows, columns]


@lru_cache(maxsize=64)
def _cosines(low: float, high: float, is_mirrored: bool) -> Tensor:
    """A part of a side, scaled, as its discrete cosine transform: one matrix (14, 64)."""
    part = torch.eye(SIDE)[:, round(low * SIDE) : round(high * SIDE)]
    size = (SIDE, _SCALED)
    scaled = F.interpolate(
        part[None, None], size, mode="bilinear", antialias=True, align_corners=False
    )[0, 0]
    place = torch.arange(_SCALED)
    transform = torch.cos(math.pi / _SCALED * (place + 0.5) * place[:_HIGHEST, None])
    return transform @ (scaled.flip(1) if is_mirrored else scaled).T


@lru_cache(maxsize=1)
def _lowest() -> tuple[Tensor, Tensor]:
    """Which products of a row's and a column's frequency are the lowest, without the mean."""
    order = sorted(
        ((row, column) for row in range(_HIGHEST) for column in range(_HIGHEST)),
        key=lambda at: (at[0] + at[1], at[0]),
    )
    rows, columns = torch.tensor(order[1 : BITS + 1]).T
    return rows, columns
