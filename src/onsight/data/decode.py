"""From bytes to pixels: the decoder that training, evaluation and prediction share.

`decode` gives a picture as it is stored: uint8 (H, W, C), C = 1 for grey and 3 for colour.
`fit` brings it to the size and channels that the model takes.
"""

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import simplejpeg
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from onsight.data.bombs import refuse_bombs, refuse_empty_expanse, refuse_pixels
from onsight.data.deep_colour import is_deep_colour, read_deep_colour
from onsight.data.foreign import foreign_kind
from onsight.errors import PictureError

VERSION = 4  # part of every pack's key: increase it when any decoded pixel may change

Pixels = NDArray[np.uint8]
Fit = Literal["stretch", "crop", "pad"]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_ORIENTATION = 0x0112
_APP1, _START_OF_SCAN = 0xE1, 0xDA  # markers of a JPEG
_GREY_MODES = {"1", "L", "LA", "La"}
_DEEP_MODES = {"I", "I;16", "I;16B", "I;16L"}
_BITS_PER_SAMPLE = 258  # a TIFF tag
_PNG_MODES = {"1", "L", "LA", "I;16", "P", "RGB", "RGBA"}
_SCALING_SLACK = 1.5  # a JPEG is decoded at no less than this multiple of the target size

# The pixel limit below is lower than Pillow's own and gives a reason instead of a warning.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


@dataclass(frozen=True)
class PictureFormat:
    """What every picture becomes: uint8 (height, width, channels).

    input_size: (height, width) of the model's input if pictures are kept at another size.
    """

    height: int
    width: int
    channels: int
    fit: Fit = "stretch"
    background: tuple[int, int, int] = (255, 255, 255)
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


def decode(
    data: bytes,
    background: tuple[int, int, int] = (255, 255, 255),
    pixel_limit: int = 64_000_000,
    least: tuple[int, int] | None = None,
    closely: bool = False,
    grey: bool = False,
) -> Pixels:
    """Decode a JPEG, PNG, WebP, GIF, BMP or TIFF, recognised by its content, and turn it upright.

    least: the smallest useful (height, width) in pixels; a JPEG at least three times as large is
    decoded at half scale or less, which saves most of the work; with closely, one at least twice
    as large. grey: skip a JPEG's colours. Raises PictureError with the reason.
    """
    if not data:
        raise PictureError("empty file (0 bytes)")
    refuse_bombs(data, pixel_limit)
    if data[:3] == b"\xff\xd8\xff":
        pixels = _decode_plain_jpeg(data, pixel_limit, least, closely, grey)
        if pixels is not None:
            return pixels
    kind = foreign_kind(data)
    if kind:
        raise PictureError(kind)
    with _reasons(pixel_limit), _open(data) as image:
        refuse_empty_expanse(image.height, image.width, len(data))
        if not is_deep_colour(image):
            return _to_pixels(image, background, pixel_limit)
        refuse_pixels(image.height, image.width, pixel_limit)
        with _open(data) as again:
            rounded = read_deep_colour(image, again, _upright)
        return _to_pixels(rounded, background, pixel_limit)


def _open(data: bytes) -> ImageFile.ImageFile:
    return Image.open(io.BytesIO(data), formats=FORMATS)


def decode_image(
    image: Image.Image,
    background: tuple[int, int, int] = (255, 255, 255),
    pixel_limit: int = 64_000_000,
) -> Pixels:
    """The pixels of a Pillow image, by the same rules as those of a file; the image stays as it is.

    Equal to `decode` of its file, but for a JPEG, which Pillow decodes whole, and for colours of 16
    bits, of which Pillow keeps the upper 8. Raises PictureError.
    """
    with _reasons(pixel_limit):
        if image.mode == "La":  # which Pillow turns into nothing else
            image = image.convert("LA")
        return _to_pixels(image, background, pixel_limit)


def encode_image(image: Image.Image) -> bytes | Pixels:
    """The pixels of a Pillow image, or its PNG if they depend on the background behind it.

    There is no pixel limit, as the image is in memory already. Raises PictureError.
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
    """(height, width, channels) from a picture's header, or None if it cannot be read."""
    try:
        with _open(data) as image:
            height, width = image.size[1], image.size[0]
            # Pillow already reports the upright size of a TIFF.
            if image.format != "TIFF" and image.getexif().get(_ORIENTATION, 1) >= 5:
                height, width = width, height
            return height, width, 1 if _is_grey(image) else 3
    except Exception:  # any damage; decode gives the reason later
        return None


def fit(pixels: Pixels, target: PictureFormat) -> Pixels:
    """Bring decoded pixels to the target's size and channels."""
    pixels = to_channels(pixels, target.channels)
    if pixels.shape[:2] == (target.height, target.width):
        return pixels
    if target.fit == "stretch":
        return resize(pixels, target)
    image = Image.fromarray(pixels[:, :, 0] if target.channels == 1 else pixels)
    size = (target.width, target.height)
    if target.fit == "crop":
        fitted = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
    else:
        colour = background_of(target)
        fitted = ImageOps.pad(image, size, Image.Resampling.BILINEAR, color=colour)
    return np.asarray(fitted, np.uint8).reshape(target.height, target.width, target.channels)


def resize(pixels: Pixels, target: PictureFormat) -> Pixels:
    """All of a picture at the target's height and width, bilinear with antialiasing.

    Within 1 grey level of Pillow's result; unlike Pillow's, threads do not wait for each other.
    """
    # torch has a fast path for a contiguous batch of one whose strides are channels last.
    owned = np.require(pixels, requirements=["C", "W"])  # torch warns about read-only arrays
    planes = torch.from_numpy(owned).unsqueeze(0).permute(0, 3, 1, 2)
    size = (target.height, target.width)
    resized = F.interpolate(planes, size, mode="bilinear", antialias=True, align_corners=False)
    return np.asarray(resized[0].permute(1, 2, 0).numpy(), np.uint8)


def background_of(target: PictureFormat) -> tuple[int, ...]:
    """The background in the target's channels."""
    return target.background if target.channels == 3 else (_luma(target.background),)


def _decode_plain_jpeg(
    data: bytes, pixel_limit: int, least: tuple[int, int] | None, closely: bool, grey: bool
) -> Pixels | None:
    """Decode an upright grey or YCbCr JPEG with libjpeg-turbo; None leaves it to Pillow."""
    try:
        height, width, colourspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    refuse_pixels(height, width, pixel_limit)
    if colourspace not in ("YCbCr", "Gray") or _orientation(data) != 1:
        return None
    slack = 1 if closely else _SCALING_SLACK
    least_height, least_width = (math.ceil(n * slack) for n in least) if least else (0, 0)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data,
            "GRAY" if grey or colourspace == "Gray" else "RGB",
            min_height=min(least_height, height),
            min_width=min(least_width, width),
            min_factor=2.0,  # scales such as 3/4 are slower than full size
        )
    except ValueError:  # Pillow tolerates some of these errors and explains the rest
        return None
    return pixels


def _orientation(data: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 when there is none."""
    if not _has_exif(data):
        return 1
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF does not make a picture unusable
        return 1


def _has_exif(data: bytes) -> bool:
    """Whether a JPEG has an EXIF segment before its pixels."""
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF and data[place + 1] != _START_OF_SCAN:
        if data[place + 1] == 0xFF:  # a fill byte
            place += 1
            continue
        if data[place + 1] == _APP1 and data[place + 4 : place + 9] == b"Exif\0":
            return True
        place += 2 + int.from_bytes(data[place + 2 : place + 4])
    return False


@contextmanager
def _reasons(pixel_limit: int) -> Iterator[None]:
    """Turn whatever Pillow raises into a PictureError with one clear reason."""
    try:
        yield
    except PictureError:
        raise
    except UnidentifiedImageError as error:
        raise PictureError(
            "not a picture that can be read (JPEG, PNG, WebP, GIF, BMP, TIFF)"
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PictureError(
            f"over {pixel_limit / 1e6:g} megapixels (--pixel-limit-megapixels)"
        ) from error
    except MemoryError as error:
        raise PictureError("not enough memory to decode it") from error
    except Exception as error:  # Pillow's plugins raise many kinds on damaged files
        raise PictureError(f"broken: {_first_line(error)}") from error


def _to_pixels(image: Image.Image, background: tuple[int, int, int], pixel_limit: int) -> Pixels:
    """A Pillow image of any mode as upright uint8 (H, W, 1 or 3)."""
    refuse_pixels(image.height, image.width, pixel_limit)
    grey = _is_grey(image)
    white = _white(image)
    image.load()
    image = _upright(image)
    if image.mode in _DEEP_MODES:
        return _scale_deep(np.asarray(image), white, image.info.get("transparency"), background)
    if image.mode == "F":
        raise PictureError("floating-point pixels have no stated range")
    if image.has_transparency_data:
        return _flatten(image.convert("RGBA"), background, grey)
    pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


def _upright(image: Image.Image) -> Image.Image:
    """The image turned by its EXIF orientation; damaged EXIF data leaves it as it is."""
    try:
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # Pillow raises many kinds of errors on damaged EXIF
        return image
    return image if orientation == 1 else ImageOps.exif_transpose(image)


def _is_grey(image: Image.Image) -> bool:
    """Whether a picture is stored grey: one channel, or a palette of greys."""
    if image.mode in _GREY_MODES or image.mode in _DEEP_MODES:
        return True
    if image.mode not in ("P", "PA") or image.palette is None:
        return False
    colours = np.asarray(image.getpalette("RGB") or [0, 1, 2]).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _white(image: Image.Image) -> int:
    """The value of white in a grey picture of more than 8 bits."""
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
        raise PictureError("32-bit pixels have no stated range")
    pixels = ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)
    if clear is None:
        return pixels[:, :, np.newaxis]
    colour = np.array(background[:1] if len(set(background)) == 1 else background, np.uint8)
    return np.where((values == clear)[:, :, np.newaxis], colour, pixels[:, :, np.newaxis])


def _flatten(image: Image.Image, background: tuple[int, int, int], grey: bool) -> Pixels:
    """Composite an RGBA picture over the background; grey stays grey over a grey one."""
    base = Image.new("RGBA", image.size, (*background, 255))
    base.alpha_composite(image)
    pixels = np.asarray(base, np.uint8)[:, :, :3]
    if grey and len(set(background)) == 1:
        pixels = pixels[:, :, :1]
    return np.ascontiguousarray(pixels)


def to_channels(pixels: Pixels, channels: int) -> Pixels:
    """Pixels (H, W, 1 or 3) converted to grey (1) or colour (3)."""
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=2)
    return np.asarray(Image.fromarray(pixels).convert("L"), np.uint8)[:, :, np.newaxis]


def _luma(colour: tuple[int, int, int]) -> int:
    """ITU-R 601 luma of a colour, as Pillow converts pixels."""
    red, green, blue = colour
    return (red * 299 + green * 587 + blue * 114) // 1000


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
