"""What Pillow makes of an image: upright uint8 (H, W, C), C = 1 for grey and 3 for colour."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from onsight.data.bombs import refuse_empty_expanse, refuse_pixels
from onsight.data.deep_colour import is_deep_colour, read_deep_colour
from onsight.errors import ImageError

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
ORIENTATION = 0x0112  # an EXIF tag
_GREY_MODES = {"1", "L", "LA", "La"}
_DEEP_MODES = {"I", "I;16", "I;16B", "I;16L"}
_BITS_PER_SAMPLE = 258  # a TIFF tag
_PNG_MODES = {"1", "L", "LA", "I;16", "P", "RGB", "RGBA"}

# The pixel limit below is lower than Pillow's own and gives a reason instead of a warning.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def decode_with_pillow(data: bytes, background: Colour, pixel_limit: int) -> Pixels:
    """Decode a file of any of FORMATS. Raises ImageError with the reason."""
    with _reasons(pixel_limit), _open(data) as image:
        refuse_empty_expanse(image.height, image.width, len(data))
        if not is_deep_colour(image):
            return _to_pixels(image, background, pixel_limit)
        refuse_pixels(image.height, image.width, pixel_limit)
        with _open(data) as again:
            rounded = read_deep_colour(image, again, _upright)
        return _to_pixels(rounded, background, pixel_limit)


def decode_image(
    image: Image.Image,
    background: Colour = (255, 255, 255),
    pixel_limit: int = 64_000_000,
) -> Pixels:
    """The pixels of a Pillow image, by the same rules as those of a file; the image stays as it is.

    Equal to `decode` of its file, but for a JPEG, which Pillow decodes whole, and for colours of 16
    bits, of which Pillow keeps the upper 8. Raises ImageError.
    """
    with _reasons(pixel_limit):
        if image.mode == "La":  # which Pillow turns into nothing else
            image = image.convert("LA")
        return _to_pixels(image, background, pixel_limit)


def encode_image(image: Image.Image) -> bytes | Pixels:
    """The pixels of a Pillow image, or its PNG if they depend on the background behind it.

    There is no pixel limit, as the image is in memory already. Raises ImageError.
    """
    limit = image.width * image.height
    if not (image.has_transparency_data or image.mode == "La"):
        return decode_image(image, pixel_limit=limit)
    file = io.BytesIO()
    with _reasons(limit):
        if image.mode not in _PNG_MODES:
            image = image.convert("LA" if image.mode == "La" else "RGBA")
        image.save(file, "PNG", compress_level=1, exif=image.getexif())
    return file.getvalue()


def probe(data: bytes) -> tuple[int, int, int] | None:
    """(height, width, channels) from an image's header, or None if it cannot be read."""
    try:
        with _open(data) as image:
            height, width = image.size[1], image.size[0]
            # Pillow already reports the upright size of a TIFF.
            if image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= 5:
                height, width = width, height
            return height, width, 1 if _is_grey(image) else 3
    except Exception:  # any damage; decode gives the reason later
        return None


def _open(data: bytes) -> ImageFile.ImageFile:
    return Image.open(io.BytesIO(data), formats=FORMATS)


@contextmanager
def _reasons(pixel_limit: int) -> Iterator[None]:
    """Turn whatever Pillow raises into a ImageError with one clear reason."""
    try:
        yield
    except ImageError:
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
        raise ImageError(f"broken: {_first_line(error)}") from error


def _to_pixels(image: Image.Image, background: Colour, pixel_limit: int) -> Pixels:
    """A Pillow image of any mode as upright uint8 (H, W, 1 or 3)."""
    refuse_pixels(image.height, image.width, pixel_limit)
    grey = _is_grey(image)
    white = _white(image)
    image.load()
    image = _upright(image)
    if image.mode in _DEEP_MODES:
        return _scale_deep(np.asarray(image), white, image.info.get("transparency"), background)
    if image.mode == "F":
        raise ImageError("floating-point pixels have no stated range")
    if image.has_transparency_data:
        return _flatten(image.convert("RGBA"), background, grey)
    pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _upright(image: Image.Image) -> Image.Image:
    """The image turned by its EXIF orientation; damaged EXIF data leaves it as it is."""
    try:
        orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # Pillow raises many kinds of errors on damaged EXIF
        return image
    return image if orientation == 1 else ImageOps.exif_transpose(image)


def _is_grey(image: Image.Image) -> bool:
    """Whether an image is stored grey: one channel, or a palette of greys."""
    if image.mode in _GREY_MODES or image.mode in _DEEP_MODES:
        return True
    if image.mode not in ("P", "PA") or image.palette is None:
        return False
    colours = np.asarray(image.getpalette("RGB") or [0, 1, 2]).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _white(image: Image.Image) -> int:
    """The value of white in a grey image of more than 8 bits."""
    if image.format != "TIFF":
        return 65535
    bits = image.tag_v2.get(_BITS_PER_SAMPLE, (1,))[0]  # type: ignore[attr-defined]
    return int(2**bits - 1)


def _scale_deep(
    values: NDArray[Any], white: int, clear: int | None, background: tuple[int, int, int]
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
    """Composite an RGBA image over the background; grey stays grey over a grey one."""
    base = Image.new("RGBA", image.size, (*background, 255))
    base.alpha_composite(image)
    pixels = np.asarray(base, np.uint8)[:, :, :3]
    if grey and len(set(background)) == 1:
        pixels = pixels[:, :, :1]
    return np.ascontiguousarray(pixels)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
