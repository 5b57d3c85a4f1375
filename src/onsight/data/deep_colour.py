"""Colours of 16 bits a channel, which Pillow opens by their upper bytes alone.

Each decoder says in which order the two bytes of a value lie, and Pillow keeps the upper one. Told
the opposite order, it keeps the lower one: two passes give the whole value.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

_NATIVE = "L" if sys.byteorder == "little" else "B"
_OPPOSITE = {"L": "B", "B": "L"}
_ROWS = 256  # at a time, as whole values take six times the memory of the image
_RAW_MODES = {f"{mode};16{order}" for mode in ("RGB", "RGBA") for order in "LBN"}

Turn = Callable[[Image.Image], Image.Image]


def is_deep_colour(image: Image.Image) -> bool:
    """Whether an image that is not loaded yet holds colours of 16 bits a channel."""
    tiles = image.tile if isinstance(image, ImageFile.ImageFile) else []
    return bool(tiles) and all(_raw_mode(tile) in _RAW_MODES for tile in tiles)


def read_deep_colour(
    image: ImageFile.ImageFile, again: ImageFile.ImageFile, turn: Turn
) -> Image.Image:
    """An image of 16 bits a channel as one of 8, rounded: RGB, or RGBA if parts are transparent.

    again: the same file, opened once more; turn: brings a loaded image upright.
    """
    again.tile = [_swapped(tile) for tile in again.tile]
    upper, lower = (np.asarray(turn(one)) for one in (image, again))
    clear = image.info.get("transparency")
    bands = range(0, len(upper), _ROWS)
    rounded = [_round(upper[at : at + _ROWS], lower[at : at + _ROWS], clear) for at in bands]
    return Image.fromarray(np.concatenate(rounded))


def _round(
    upper: NDArray[np.uint8], lower: NDArray[np.uint8], clear: tuple[int, ...] | None
) -> NDArray[np.uint8]:
    """Values (H, W, C) as 8 bits; with alpha if a PNG declares one colour transparent."""
    values = upper.astype(np.uint32) << 8 | lower
    pixels = ((values * 255 + 32767) // 65535).astype(np.uint8)
    if clear is not None:
        opaque = np.where((values == np.array(clear)).all(axis=2), 0, 255).astype(np.uint8)
        pixels = np.dstack([pixels, opaque])
    return pixels


def _raw_mode(tile: Any) -> str:
    """The order of a tile's bytes: the arguments of its decoder are a word or begin with one."""
    arguments = tile.args
    return str(arguments if isinstance(arguments, str) else next(iter(arguments or ()), ""))


def _swapped(tile: Any) -> Any:
    """A tile whose bytes are taken in the opposite order."""
    arguments = tile.args
    mode, _, order = _raw_mode(tile).rpartition("16")
    swapped = f"{mode}16{_OPPOSITE[_NATIVE if order == 'N' else order]}"
    return tile._replace(args=swapped if isinstance(arguments, str) else (swapped, *arguments[1:]))
