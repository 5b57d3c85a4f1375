"""What can be given as a picture: a path, encoded bytes, a Pillow image, an array or a tensor."""

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Union, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.fit import PictureFormat
from onsight.data.packing import prepare_picture
from onsight.data.pillow_pixels import Pixels, decode_image
from onsight.data.pixels import WANTED, is_tensor, read_array
from onsight.data.sources.read_file import read_regular_file
from onsight.errors import PictureError

if TYPE_CHECKING:
    from torch import Tensor

Picture = Union[str, Path, bytes, Image.Image, NDArray[Any], "Tensor"]

_LOADING = Lock()  # two entries may be the same image, which Pillow loads in place


def is_one(pictures: Picture | Iterable[Picture]) -> bool:
    """Whether this is a single picture rather than several."""
    if is_tensor(pictures):
        return pictures.ndim < 4
    if isinstance(pictures, np.ndarray):
        return pictures.ndim < 4 and pictures.dtype.kind not in "OUS"  # those are paths in an array
    return isinstance(pictures, (str, bytes)) or not isinstance(pictures, Iterable)


def several(pictures: Picture | Iterable[Picture]) -> Iterable[Picture]:
    """The pictures one by one, even if there is only one."""
    return cast(Iterable[Picture], [pictures] if is_one(pictures) else pictures)


def name_of(picture: Picture) -> str:
    """The path of a picture, or where else it is."""
    return os.fspath(picture) if isinstance(picture, (str, Path)) else "(in memory)"


def read_picture(picture: Picture, target: PictureFormat) -> Pixels:
    """The pixels that the model takes: uint8 (H, W, C). Raises PictureError."""
    content: object = picture
    if isinstance(picture, (str, Path)):
        content = read_regular_file(os.fspath(picture))
    elif isinstance(picture, Image.Image):
        with _LOADING:
            content = decode_image(picture, target.background, target.pixel_limit)
    elif isinstance(picture, np.ndarray) or is_tensor(picture):
        content = _from_array(picture, target)
    if not isinstance(content, (bytes, np.ndarray)):
        raise PictureError(f"a {type(picture).__name__} is not a picture: {WANTED}")
    return prepare_picture(content, target)[1]


def _from_array(array: "NDArray[Any] | Tensor", target: PictureFormat) -> Pixels:
    pixels = read_array(array)
    if pixels.shape[2] == 4:
        return decode_image(Image.fromarray(pixels), target.background, pixels.size)
    return pixels
