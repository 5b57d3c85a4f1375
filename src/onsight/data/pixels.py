"""Images held in memory, as arrays or tensors, brought to the pixels that a decoder gives."""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.pillow_pixels import Pixels, encode_image
from onsight.errors import ImageError

if TYPE_CHECKING:
    from torch import Tensor

_CHANNELS = (1, 3, 4)
WANTED = (
    "give a path, the bytes of a file, a Pillow image, or an array or tensor of uint8 (0 to 255) "
    "or floats (0 to 1) in the shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels; "
    "several images as a list or an array with n in front"
)


def is_tensor(value: object) -> "TypeGuard[Tensor]":
    """Whether this is a tensor of torch, which need not be installed."""
    torch = sys.modules.get("torch")  # nobody has a tensor without it
    return torch is not None and isinstance(value, torch.Tensor)


def read_array(image: "NDArray[Any] | Tensor") -> Pixels:
    """The pixels of an array or tensor: uint8 (H, W, C), C = 1, 3 or, with transparency, 4.

    Where both (H, W, C) and (C, H, W) are possible, an array has its channels last, as Pillow's
    have, and a tensor first, as torch's do. Floats are scaled by 255. Raises ImageError.
    """
    channels_first = is_tensor(image)
    array = _to_array(image)
    pixels = _channels_last(array, channels_first)
    if pixels is None or not (array.dtype == np.uint8 or array.dtype.kind == "f"):
        raise ImageError(f"an array of {array.dtype} {array.shape} is not an image: {WANTED}")
    if array.size == 0:
        raise ImageError("has no pixels")
    return _to_bytes(pixels)


def read_memory(image: object) -> bytes | Pixels:
    """An image in memory as a source gives it: encoded, or uint8 (H, W, 1 or 3).

    Equal to the same image saved without loss as a file. Raises ImageError.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return encode_image(image)
    if not (isinstance(image, np.ndarray) or is_tensor(image)):
        raise ImageError(f"a {type(image).__name__} is not an image: {WANTED}")
    pixels = read_array(image)
    return encode_image(Image.fromarray(pixels)) if pixels.shape[2] == 4 else pixels


def _to_array(image: "NDArray[Any] | Tensor") -> NDArray[Any]:
    if isinstance(image, np.ndarray):
        return image
    tensor = image.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # numpy has no bf16


def _channels_last(array: NDArray[Any], channels_first: bool) -> NDArray[Any] | None:
    """The array as (H, W, C), or None if it has no such shape."""
    if array.ndim == 2:
        return array[:, :, np.newaxis]
    if array.ndim != 3:
        return None
    first, last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
    if first and (channels_first or not last):
        return array.transpose(1, 2, 0)
    return array if last else None


def _to_bytes(pixels: NDArray[Any]) -> Pixels:
    """Floats from 0 to 1 as 0 to 255; uint8 stays as it is."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    low, high = float(pixels.min()), float(pixels.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError("has pixels that are NaN or infinite")
    if low < 0 or high > 1:
        raise ImageError(
            f"has floats from {low:g} to {high:g}, but they must be from 0 to 1: divide by the "
            "largest value of all, or give uint8 from 0 to 255. Onsight normalizes by itself"
        )
    return np.ascontiguousarray(np.rint(pixels * pixels.dtype.type(255)).astype(np.uint8))
