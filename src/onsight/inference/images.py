"""What can be given as an image: a path, encoded bytes, a Pillow image, an array or a tensor."""

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.fit import ImageFormat
from onsight.data.packing import prepare_image
from onsight.data.pillow_pixels import Pixels, decode_image
from onsight.data.pixels import WANTED, is_tensor, read_array
from onsight.data.sources.read_file import read_regular_file
from onsight.errors import ImageError
from onsight.inference.inputs.input import Input

if TYPE_CHECKING:
    from torch import Tensor

ImageLike = Union[str, Path, bytes, Image.Image, NDArray[Any], "Tensor", Input]

_LOADING = Lock()  # two entries may be the same image, which Pillow loads in place


def is_one(images: ImageLike | Iterable[ImageLike]) -> bool:
    """Whether this is a single image rather than several."""
    if is_tensor(images):
        return images.ndim < 4
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind not in "OUS"  # those are paths in an array
    return isinstance(images, (str, bytes, Input)) or not isinstance(images, Iterable)


def several(images: ImageLike | Iterable[ImageLike]) -> Iterable[ImageLike]:
    """The images one by one, even if there is only one."""
    return cast(Iterable[ImageLike], [images] if is_one(images) else images)


def name_of(image: ImageLike) -> str:
    """The path of an image, or where else it is."""
    if isinstance(image, Input):
        return image.name
    return os.fspath(image) if isinstance(image, (str, Path)) else "(in memory)"


def read_image(image: ImageLike, target: ImageFormat) -> Pixels:
    """The pixels that the model takes: uint8 (H, W, C). Raises ImageError."""
    content: object = image
    if isinstance(image, Input):
        content = image.read()
    elif isinstance(image, (str, Path)):
        content = read_regular_file(os.fspath(image))
    elif isinstance(image, Image.Image):
        with _LOADING:
            content = decode_image(image, target.background, target.pixel_limit)
    elif isinstance(image, np.ndarray) or is_tensor(image):
        content = _from_array(image, target)
    if not isinstance(content, (bytes, np.ndarray)):
        raise ImageError(f"a {type(image).__name__} is not an image: {WANTED}")
    return prepare_image(content, target)[1]


def _from_array(array: "NDArray[Any] | Tensor", target: ImageFormat) -> Pixels:
    pixels = read_array(array)
    if pixels.shape[2] == 4:
        return decode_image(Image.fromarray(pixels), target.background, pixels.size)
    return pixels
