"""Heat drawn over an image: a colour, and an outline that can be read without it.

H height, W width, C channels (1 or 3); uint8 pixels, float32 heat from 0 to 1.
"""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from onsight.data.fit import Fit
from onsight.data.pixels import Pixels

Heat = NDArray[np.float32]

OUTLINED = 0.8  # fraction of the heat inside the outline

_COLOURS = "inferno"  # perceptually uniform: hotter is lighter
_DIMMED = 0.6  # brightness of cold areas
_STRONGEST = 0.6  # opacity of the colour at the hottest place, so that the image shows through
_LINES_PER_SIDE = 160  # ratio of the image's shorter side to the outline's width


def overlay(pixels: Pixels, heat: Heat) -> Pixels:
    """Draw heat (H, W) over an image (H, W, C): uint8 (H, W, 3).

    Cold regions are dimmed; the hotter, the more of inferno's colours. The outline, white outside
    and black inside, is around the smallest area that holds 80% of the heat.
    """
    from matplotlib import colormaps  # takes a fifth of a second to import

    image = np.broadcast_to(pixels, (*heat.shape, 3)).astype(np.float32)
    share = _STRONGEST * np.sqrt(heat)[:, :, np.newaxis]
    colours = np.asarray(colormaps[_COLOURS](heat), np.float32)[:, :, :3] * 255
    drawn = _DIMMED * image * (1 - share) + colours * share
    area = hottest_area(heat)
    width = max(1, round(min(heat.shape) / _LINES_PER_SIDE))
    drawn[_grow(area, width) & ~area] = 255
    drawn[area & _grow(~area, width)] = 0
    return drawn.round().astype(np.uint8)


def hottest_area(heat: Heat, share: float = OUTLINED) -> NDArray[np.bool_]:
    """Mark the fewest places that together hold a share of all heat: bool (H, W)."""
    falling = np.sort(heat, axis=None)[::-1].astype(np.float64)
    sums = falling.cumsum()
    count = int(np.searchsorted(sums, share * sums[-1]))
    least = max(float(falling[min(count, len(falling) - 1)]), float(np.finfo(np.float32).tiny))
    return np.asarray(heat >= least)


def enlarge(pixels: Pixels, heat: Heat, side: int) -> tuple[Pixels, Heat]:
    """Enlarge a small image and its heat by a whole factor until the longer side is this long.

    Pixels stay squares, so that a thin outline does not hide them.
    """
    factor = max(1, -(-side // max(heat.shape)))
    height, width = heat.shape
    enlarged = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    return enlarged, resize_heat(heat, (height * factor, width * factor))


def map_to_original(heat: Heat, size: tuple[int, int], fit: Fit) -> Heat:
    """Lay the heat of a fitted image over the original of this (height, width).

    Areas that a crop removed are cold.
    """
    if fit == "stretch":
        return resize_heat(heat, size)
    scales = size[0] / heat.shape[0], size[1] / heat.shape[1]  # original pixels per fitted pixel
    if fit == "pad":
        scale = max(scales)
        inside = round(size[0] / scale), round(size[1] / scale)
        return resize_heat(_centre(heat, inside), size)
    scale = min(scales)
    inside = round(heat.shape[0] * scale), round(heat.shape[1] * scale)
    whole = np.zeros(size, np.float32)
    _centre(whole, inside)[:] = resize_heat(heat, inside)
    return whole


def resize_heat(heat: Heat, size: tuple[int, int]) -> Heat:
    """Resize heat (H, W) to another (height, width), bilinear."""
    planes = torch.from_numpy(np.ascontiguousarray(heat))[None, None]
    return np.asarray(F.interpolate(planes, size, mode="bilinear")[0, 0].numpy())


def _centre(values: Heat, size: tuple[int, int]) -> Heat:
    """Return the middle of this (height, width) of values, sharing their memory."""
    top, left = (values.shape[0] - size[0]) // 2, (values.shape[1] - size[1]) // 2
    return values[top : top + size[0], left : left + size[1]]


def _grow(area: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Return an area (H, W), grown by a width in pixels on all sides."""
    planes = torch.from_numpy(area)[None, None].float()
    grown = F.max_pool2d(planes, 2 * width + 1, stride=1, padding=width)
    return np.asarray(grown[0, 0].bool().numpy())
