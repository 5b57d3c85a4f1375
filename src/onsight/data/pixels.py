"""Pixels from Pillow images, arrays and tensors: upright uint8 (H, W, C), C = 1 or 3.

H height, W width, C channels: 1 for grey, 3 for colour.
"""

import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, UnidentifiedImageError

from onsight.data.refusals import (
    refuse_bombs,
    refuse_empty_expanse,
    refuse_exif,
    refuse_pixels,
)
from onsight.errors import ConfigError, ImageError

if TYPE_CHECKING:
    from torch import Tensor

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
ACCEPTED = (
    "pass a path, the bytes of a file, a Pillow image, or an array or tensor of uint8 (0 to 255) "
    "or floats (0 to 1) in the shape (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels; "
    "several images as a list or an array with n in front"
)

_ORIENTATION = 0x0112  # an EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)  # orientations that exchange height and width
_CHANNELS = (1, 3, 4)
_GREY_MODES = {"1", "L", "LA", "La"}
_DEEP_GREY_MODES = {"I", "I;16", "I;16B", "I;16L"}
_BITS_PER_SAMPLE = 258  # a TIFF tag
_PNG_MODES = {"1", "L", "LA", "I;16", "P", "RGB", "RGBA"}

# Colours of 16 bits a channel: see _read_deep_colour.
_NATIVE = "L" if sys.byteorder == "little" else "B"
_OPPOSITE = {"L": "B", "B": "L"}
_DEEP_COLOUR_MODES = {f"{mode};16{order}" for mode in ("RGB", "RGBA") for order in "LBN"}
_DEEP_BYTES = 30  # bytes per pixel at the peak of decoding them
_BAND_ROWS = 256  # rows per band; a band bounds memory, as full values need six times the image's

# The pixel limit below is lower than Pillow's and raises an error with a reason.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")  # about metadata


def decode_with_pillow(
    data: bytes,
    background: Colour,
    pixel_limit: int,
    reserve: Callable[[int], object] = lambda needed_bytes: None,
) -> Pixels:
    """Decode a file in one of FORMATS. Raises ImageError with the reason.

    reserve: called with the bytes that decoding takes, before they are used.
    """
    with _as_image_error(pixel_limit), _open(data) as image:
        refuse_empty_expanse(image.height, image.width, len(data))
        refuse_pixels(image.height, image.width, pixel_limit)
        is_deep = _is_deep_colour(image)
        bytes_per_pixel = _DEEP_BYTES if is_deep else _bytes_per_pixel(image)
        reserve(image.height * image.width * bytes_per_pixel)
        if not is_deep:
            return _to_pixels(image, background, pixel_limit)
        with _open(data) as again:
            rounded = _read_deep_colour(image, again)
        return _to_pixels(rounded, background, pixel_limit)


def decode_image(
    image: Image.Image,
    background: Colour = (255, 255, 255),
    pixel_limit: int = 64_000_000,
) -> Pixels:
    """Return the pixels of a Pillow image, by the same rules as for a file.

    Equal to `decode` of its file, except for a JPEG, which Pillow decodes at full scale, and for
    16-bit colour, of which Pillow keeps only the upper 8 bits. Raises ImageError.
    """
    with _as_image_error(pixel_limit):
        if image.mode == "La":  # Pillow converts La only to LA
            image = image.convert("LA")
        return _to_pixels(image, background, pixel_limit)


def to_pillow(pixels: Pixels) -> Image.Image:
    """Return pixels uint8 (H, W, C) as an image in mode L or RGB."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def encode_png(pixels: Pixels) -> bytes:
    """Return pixels uint8 (H, W, C) as a PNG file, which has no loss."""
    file = io.BytesIO()
    to_pillow(pixels).save(file, "PNG")
    return file.getvalue()


def encode_image(image: Image.Image) -> bytes | Pixels:
    """Return the pixels of a Pillow image, or its PNG if they depend on the background behind it.

    There is no pixel limit, because the image is in memory already. Raises ImageError.
    """
    limit = image.width * image.height
    if not (image.has_transparency_data or image.mode == "La"):
        return decode_image(image, pixel_limit=limit)
    file = io.BytesIO()
    with _as_image_error(limit):
        if image.mode not in _PNG_MODES:
            image = image.convert("LA" if image.mode == "La" else "RGBA")
        image.save(file, "PNG", compress_level=1, exif=image.getexif())
    return file.getvalue()


def read_orientation(image: Image.Image) -> int:
    """Return the orientation from EXIF or else XMP data; 1 if there is none, or it is damaged.

    Raises ImageError if there is too much EXIF data.
    """
    for name in ("exif", "Raw profile type exif"):
        refuse_exif(len(image.info.get(name) or ""))
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # Pillow raises many kinds of errors on damaged EXIF
        return 1


def probe(data: bytes) -> tuple[int, int, int] | None:
    """Return (height, width, channels) from an image's header, or None if it cannot be read."""
    try:
        refuse_bombs(data, sys.maxsize)
        with _open(data) as image:
            height, width = image.size[1], image.size[0]
            # Pillow already reports the upright size of a TIFF.
            if image.format != "TIFF" and read_orientation(image) in _SIDEWAYS:
                height, width = width, height
            return height, width, 1 if _is_grey(image) else 3
    except Exception:  # any damage; decoding reports the reason later
        return None


def is_tensor(value: object) -> "TypeGuard[Tensor]":
    """Return whether a value is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")  # if torch was never imported, there are no tensors
    return torch is not None and isinstance(value, torch.Tensor)


def read_array(image: "NDArray[Any] | Tensor") -> Pixels:
    """Return the pixels of an array or tensor: uint8 (H, W, C), C = 1, 3 or, with alpha, 4.

    Where both (H, W, C) and (C, H, W) are possible, an array is read as channels last, like
    Pillow's, and a tensor as channels first, like torch's. Floats are multiplied by 255.
    Raises ImageError.
    """
    channels_first = is_tensor(image)
    array = _to_array(image)
    pixels = _channels_last(array, channels_first)
    if pixels is None or not (array.dtype == np.uint8 or array.dtype.kind == "f"):
        raise ImageError(f"an array of {array.dtype} {array.shape} is not an image: {ACCEPTED}")
    if array.size == 0:
        raise ImageError("has no pixels")
    return _to_bytes(pixels)


def read_memory(image: object) -> bytes | Pixels:
    """Return an image in memory as a source returns it: encoded, or uint8 (H, W, 1 or 3).

    Equal to the same image saved losslessly to a file. Raises ImageError.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image.Image):
        return encode_image(image)
    if not (isinstance(image, np.ndarray) or is_tensor(image)):
        raise ImageError(f"a {type(image).__name__} is not an image: {ACCEPTED}")
    pixels = read_array(image)
    return encode_image(Image.fromarray(pixels)) if pixels.shape[2] == 4 else pixels


def _open(data: bytes) -> ImageFile.ImageFile:
    return Image.open(io.BytesIO(data), formats=FORMATS)


@contextmanager
def _as_image_error(pixel_limit: int) -> Iterator[None]:
    """Turn whatever Pillow raises into an ImageError with one clear reason."""
    try:
        yield
    except (ImageError, ConfigError):
        raise
    except UnidentifiedImageError as error:
        raise ImageError(
            "not an image that can be read (JPEG, PNG, WebP, GIF, BMP, TIFF)"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"over {pixel_limit / 1e6:g} megapixels (--pixel-limit-megapixels)"
        ) from error
    except MemoryError as error:
        raise ImageError("not enough memory to decode it") from error
    except Exception as error:  # Pillow's plugins raise many kinds on damaged files
        raise ImageError(_describe_damage(error)) from error


def _to_pixels(image: Image.Image, background: Colour, pixel_limit: int) -> Pixels:
    """Return a Pillow image of any mode as upright uint8 (H, W, 1 or 3)."""
    refuse_pixels(image.height, image.width, pixel_limit)
    grey = _is_grey(image)
    white = _white(image)
    image = _upright(image)
    if image.mode in _DEEP_GREY_MODES:
        return _scale_deep_grey(
            np.asarray(image), white, image.info.get("transparency"), background
        )
    if image.mode == "F":
        raise ImageError("floating-point pixels have no stated range")
    if image.has_transparency_data:
        return _flatten(image.convert("RGBA"), background, grey)
    pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image by its EXIF orientation, or leave it as it is if the EXIF data is damaged.

    ImageOps.exif_transpose would fail on any damaged entry, as it writes the EXIF data anew.
    """
    image.load()  # then a TIFF is upright
    turn = _TURNS.get(read_orientation(image))
    return image if turn is None else image.transpose(turn)


def _is_grey(image: Image.Image) -> bool:
    """Return whether an image is stored grey: one channel, or a palette of greys."""
    if image.mode in _GREY_MODES or image.mode in _DEEP_GREY_MODES:
        return True
    if image.mode not in ("P", "PA") or image.palette is None:
        return False
    colours = np.asarray(image.getpalette("RGB") or [0, 1, 2]).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _white(image: Image.Image) -> int:
    """Return the value of white in a grey image of more than 8 bits."""
    if image.format != "TIFF":
        return 65535
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))[0]  # type: ignore[attr-defined]
    return int(2**bits - 1)


def _scale_deep_grey(
    values: NDArray[Any], white: int, clear: int | None, background: Colour
) -> Pixels:
    """Scale grey of 9 to 16 bits to 8 bits: white becomes 255, nothing is clipped.

    clear: the value of transparent pixels, which show the background.
    """
    if white > 65535 or (values.size and (values.min() < 0 or values.max() > white)):
        raise ImageError("32-bit pixels have no stated range")
    pixels = ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)
    if clear is None:
        return pixels[:, :, np.newaxis]
    colour = np.array(background[:1] if len(set(background)) == 1 else background, np.uint8)
    return np.where((values == clear)[:, :, np.newaxis], colour, pixels[:, :, np.newaxis])


def _flatten(image: Image.Image, background: Colour, grey: bool) -> Pixels:
    """Composite an RGBA image over the background; grey stays grey over a grey background."""
    base = Image.new("RGBA", image.size, (*background, 255))
    base.alpha_composite(image)
    pixels = np.asarray(base, np.uint8)[:, :, :3]
    if grey and len(set(background)) == 1:
        pixels = pixels[:, :, :1]
    return np.ascontiguousarray(pixels)


def _describe_damage(error: Exception) -> str:
    text = str(error).strip().splitlines()
    # The message of a LookupError is only the key that a plugin looked up.
    if not text or isinstance(error, LookupError):
        return "broken: its content cannot be decoded"
    return f"broken: {text[0]}"


def _bytes_per_pixel(image: Image.Image) -> int:
    """Return the measured peak of memory while a file of 8 bits a channel is decoded."""
    return 8 if image.mode in ("1", "L") and not image.has_transparency_data else 24


def _is_deep_colour(image: Image.Image) -> bool:
    """Return whether an image that is not loaded yet has colours of 16 bits a channel."""
    tiles = image.tile if isinstance(image, ImageFile.ImageFile) else []
    return bool(tiles) and all(_raw_mode(tile) in _DEEP_COLOUR_MODES for tile in tiles)


def _read_deep_colour(image: ImageFile.ImageFile, again: ImageFile.ImageFile) -> Image.Image:
    """Round an image of 16 bits a channel to 8: RGB, or RGBA if parts are transparent.

    Pillow keeps only the upper byte of each value. Given the opposite byte order, it keeps the
    lower one, so two passes yield the whole value. again: the same file, opened a second time.
    """
    again.tile = [_swap_bytes(tile) for tile in again.tile]
    upper, lower = np.asarray(_upright(image)), np.asarray(_upright(again))
    clear = image.info.get("transparency")
    bands = [slice(first, first + _BAND_ROWS) for first in range(0, len(upper), _BAND_ROWS)]
    rounded = [_round_to_8_bits(upper[band], lower[band], clear) for band in bands]
    return Image.fromarray(np.concatenate(rounded))


def _round_to_8_bits(upper: Pixels, lower: Pixels, clear: tuple[int, ...] | None) -> Pixels:
    """Return values (H, W, C) as 8 bits, with alpha if a PNG declares one colour transparent."""
    values = upper.astype(np.uint32) << 8 | lower
    pixels = ((values * 255 + 32767) // 65535).astype(np.uint8)
    if clear is not None:
        opaque = np.where((values == np.array(clear)).all(axis=2), 0, 255).astype(np.uint8)
        pixels = np.dstack([pixels, opaque])
    return pixels


def _raw_mode(tile: Any) -> str:
    """Return a tile's raw mode: its decoder's only argument, or the first of several."""
    arguments = tile.args
    return str(arguments if isinstance(arguments, str) else next(iter(arguments or ()), ""))


def _swap_bytes(tile: Any) -> Any:
    """Return a tile that is decoded in the opposite byte order."""
    arguments = tile.args
    mode, _, order = _raw_mode(tile).rpartition("16")
    swapped = f"{mode}16{_OPPOSITE[_NATIVE if order == 'N' else order]}"
    return tile._replace(args=swapped if isinstance(arguments, str) else (swapped, *arguments[1:]))


def _to_array(image: "NDArray[Any] | Tensor") -> NDArray[Any]:
    if isinstance(image, np.ndarray):
        if np.ma.is_masked(image):
            raise ImageError("has masked pixels: give them a value first, as by array.filled(255)")
        return image
    try:
        tensor = image.detach().cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # not bf16
    except (TypeError, RuntimeError) as error:  # such as a sparse tensor, or one without values
        raise ImageError(
            f"a tensor of {image.layout} on {image.device} is not an image: {ACCEPTED}"
        ) from error


def _channels_last(array: NDArray[Any], channels_first: bool) -> NDArray[Any] | None:
    """Return the array as (H, W, C), or None if it has no such shape."""
    if array.ndim == 2:
        return array[:, :, np.newaxis]
    if array.ndim != 3:
        return None
    first, last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
    if first and (channels_first or not last):
        return array.transpose(1, 2, 0)
    return array if last else None


def _to_bytes(pixels: NDArray[Any]) -> Pixels:
    """Scale floats from 0 to 1 to 0 to 255; uint8 stays as it is."""
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    low, high = float(pixels.min()), float(pixels.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        raise ImageError("has pixels that are NaN or infinite")
    if low < 0 or high > 1:
        raise ImageError(
            f"has floats from {low:g} to {high:g}, but they must be from 0 to 1: divide by the "
            "largest possible value, or pass uint8 from 0 to 255. Onsight normalizes by itself"
        )
    return np.ascontiguousarray(np.rint(pixels * pixels.dtype.type(255)).astype(np.uint8))
