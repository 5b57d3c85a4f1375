"""A random-resized crop cut out of an image while it is decoded."""

import math
from typing import NamedTuple

import numpy as np

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat, background_of, to_channels
from onsight.data.pillow_pixels import Pixels
from onsight.data.resize import resize
from onsight.limits import PADDED_PIXELS


class Window(NamedTuple):
    """A part of an image: shares of its height and width, and a centre from -1 to 1."""

    height: float
    width: float
    centre_y: float
    centre_x: float


class _Box(NamedTuple):
    """A part of an image in fractional pixels."""

    top: float
    left: float
    height: float
    width: float


def crop_image(content: bytes | Pixels, window: Window, target: ImageFormat) -> Pixels:
    """The window of an image at the target's size and channels. Raises ImageError.

    The window is a part of what target.fit would show of the image (stretched, cropped or
    padded); its edges are rounded to pixels no larger than the result's.
    """
    if isinstance(content, bytes):
        least = _least_size(window, target)
        content = decode(
            content, target.background, target.pixel_limit, least, True, target.channels == 1
        )
    pixels = to_channels(content, target.channels)
    if target.fit == "pad":
        pixels = _pad(pixels, target)
    return resize(_cut(pixels, window, _frame(pixels, target)), target.height, target.width)


def _least_size(window: Window, target: ImageFormat) -> tuple[int, int]:
    """The least (height, width) of a whole image whose window has the target's pixels."""
    height, width = 1 / window.height, 1 / window.width
    if target.fit != "stretch":  # both sides shrink by the same factor
        height = width = max(height, width)
    return math.ceil(target.height * height), math.ceil(target.width * width)


def _pad(pixels: Pixels, target: ImageFormat) -> Pixels:
    """The image in the smallest frame around it with the target's aspect ratio."""
    height, width = pixels.shape[:2]
    frame_height = max(height, round(width * target.height / target.width))
    frame_width = max(width, round(height * target.width / target.height))
    scale = math.sqrt(PADDED_PIXELS / (frame_height * frame_width))
    if scale < 1:  # a strip of an image needs a frame of many times its pixels
        smaller = max(1, round(scale * height)), max(1, round(scale * width))
        return _pad(resize(pixels, *smaller), target)
    frame = np.empty((frame_height, frame_width, target.channels), np.uint8)
    frame[:] = background_of(target)
    top, left = (frame_height - height) // 2, (frame_width - width) // 2
    frame[top : top + height, left : left + width] = pixels
    return frame


def _frame(pixels: Pixels, target: ImageFormat) -> _Box:
    """What is shown of an image: all of it, or its centre in the target's aspect ratio."""
    height, width = pixels.shape[:2]
    if target.fit != "crop":
        return _Box(0, 0, height, width)
    shown_height = min(height, width * target.height / target.width)
    shown_width = shown_height * target.width / target.height
    return _Box((height - shown_height) / 2, (width - shown_width) / 2, shown_height, shown_width)


def _cut(pixels: Pixels, window: Window, frame: _Box) -> Pixels:
    rows = _span(frame.top, frame.height, window.centre_y, window.height, pixels.shape[0])
    columns = _span(frame.left, frame.width, window.centre_x, window.width, pixels.shape[1])
    return pixels[rows, columns]


def _span(first: float, length: float, centre: float, share: float, limit: int) -> slice:
    """The whole pixels, at least one, in a share of a length around a centre."""
    start = first + length * ((centre + 1) - share) / 2
    from_pixel = min(max(round(start), 0), limit - 1)
    return slice(from_pixel, min(max(round(start + length * share), from_pixel + 1), limit))
