"""The size and channels that every image is brought to."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageOps

from onsight.data.pillow_pixels import Colour, Pixels
from onsight.data.resize import resize

Fit = Literal["stretch", "crop", "pad"]


@dataclass(frozen=True)
class ImageFormat:
    """What every image becomes: uint8 (height, width, channels).

    input_size: (height, width) of the model's input if images are kept at another size.
    """

    height: int
    width: int
    channels: int
    fit: Fit = "stretch"
    background: Colour = (255, 255, 255)
    pixel_limit: int = 64_000_000
    input_size: tuple[int, int] | None = None

    @property
    def shown(self) -> tuple[int, int]:
        """(height, width) that the model sees; it alone sets the scale JPEGs are decoded at."""
        return self.input_size or (self.height, self.width)

    def facts(self) -> dict[str, Any]:
        """The format as plain values, for files and keys."""
        facts = {**vars(self), "background": list(self.background)}
        size = facts.pop("input_size")
        return facts | ({"input_size": list(size)} if size else {})


def fit(pixels: Pixels, target: ImageFormat) -> Pixels:
    """Bring decoded pixels to the target's size and channels."""
    pixels = to_channels(pixels, target.channels)
    if pixels.shape[:2] == (target.height, target.width):
        return pixels
    if target.fit == "stretch":
        return resize(pixels, target.height, target.width)
    image = Image.fromarray(pixels[:, :, 0] if target.channels == 1 else pixels)
    size = (target.width, target.height)
    if target.fit == "crop":
        fitted = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    else:
        colour = background_of(target)
        fitted = ImageOps.pad(image, size, Image.Resampling.BILINEAR, color=colour)
    return np.asarray(fitted, np.uint8).reshape(target.height, target.width, target.channels)


def background_of(target: ImageFormat) -> tuple[int, ...]:
    """The background in the target's channels."""
    return target.background if target.channels == 3 else (_luma(target.background),)


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """Pixels (H, W, 1 or 3) converted to grey (1) or colour (3)."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.asarray(Image.fromarray(pixels).convert("L"), np.uint8)[:, :, np.newaxis]


def _luma(colour: Colour) -> int:
    """ITU-R 601 luma of a colour, as Pillow converts pixels."""
    red, green, blue = colour
    return (red * 299 + green * 587 + blue * 114) // 1000
