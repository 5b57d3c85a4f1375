"""The image decoder of training, evaluation and prediction.

`decode` returns the stored image; `prepare_image` also converts it to the model's format.

H height, W width, C channels: 1 for grey, 3 for colour.
"""

import hashlib
import io
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import simplejpeg
from PIL import Image

from onsight.data.decoding_memory import MEMORY
from onsight.data.fit import ImageFormat, fit
from onsight.data.index import DIGEST_BYTES
from onsight.data.pixels import Colour, Pixels, decode_with_pillow, probe, read_orientation
from onsight.data.refusals import TIFF, recognise_foreign, refuse_bombs, refuse_pixels
from onsight.data.tiff_process import decode_tiff
from onsight.errors import ImageError

VERSION = 5  # part of the cache keys: increase it when any decoded pixel may change

_APP1, _START_OF_SCAN = 0xE1, 0xDA  # JPEG markers
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)  # markers of frames that are not progressive
# Bytes per pixel at the peak of decoding and converting.
_JPEG_BYTES, _COEFFICIENT_BYTES, _TIFF_BYTES = 8, 7, 36
_METADATA = (b"Exif\0", b"http://ns.adobe.com/xap/")  # how these segments begin
_MIN_SCALE = 1.5  # JPEGs are decoded at no less than this multiple of min_size, unless tight


@MEMORY.held()
def prepare_image(content: bytes | Pixels, target: ImageFormat) -> tuple[Pixels, Pixels]:
    """Decode an image and convert it to a format.

    Args:
        content: An encoded image, or its pixels, uint8 (H, W, C).
        target: The format. With 0 channels, the image keeps its number of channels.

    Returns:
        The decoded and the converted pixels.

    Raises:
        ImageError: If the image cannot be used.
    """
    if isinstance(content, bytes):
        grey = target.channels == 1
        pixels = decode(
            content, target.background, target.pixel_limit, target.decoded_size, grey=grey
        )
    else:
        pixels = content
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
            raise ImageError("pixels must be uint8 (H, W, 1) or (H, W, 3)")
    if target.channels == 0:
        target = replace(target, channels=pixels.shape[2])
    return pixels, fit(pixels, target)


@MEMORY.held()
def decode(
    data: bytes,
    background: Colour = (255, 255, 255),
    pixel_limit: int = 64_000_000,
    min_size: tuple[int, int] | None = None,
    *,
    tight: bool = False,
    grey: bool = False,
) -> Pixels:
    """Decode a JPEG, PNG, WebP, GIF, BMP or TIFF, recognised by its content, and turn it upright.

    Args:
        data: The encoded image.
        background: The colour behind transparent pixels.
        pixel_limit: The maximum number of pixels.
        min_size: The smallest useful (height, width). A JPEG at least three times as large is
            decoded at half its size or less, which saves most of the work.
        tight: Decode a JPEG of at least twice that size at half its size or less. For streamed
            crops, whose min_size already allows for the part of the image that is used.
        grey: Decode only the brightness of a JPEG.

    Raises:
        ImageError: If the image cannot be used, with the reason.
    """
    if not data:
        raise ImageError("empty file (0 bytes)")
    refuse_bombs(data, pixel_limit)
    if data[:3] == b"\xff\xd8\xff":
        pixels = _decode_plain_jpeg(data, pixel_limit, min_size, tight, grey)
        if pixels is not None:
            return pixels
    kind = recognise_foreign(data)
    if kind:
        raise ImageError(kind)
    if data.startswith(TIFF):
        height, width, _ = probe(data) or (0, 0, 0)
        if height * width <= pixel_limit:  # others are refused
            MEMORY.reserve(height * width * _TIFF_BYTES)
        return decode_tiff(data, background, pixel_limit)
    return decode_with_pillow(data, background, pixel_limit, MEMORY.reserve)


def pixel_digest(pixels: Pixels) -> bytes:
    """Return the digest that identifies a decoded image; grey in one or three channels is equal."""
    if pixels.shape[2] == 3 and _has_equal_channels(pixels):
        pixels = pixels[:, :, :1]
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:DIGEST_BYTES]


def _has_equal_channels(pixels: Pixels) -> bool:
    """Return whether the three channels are equal. A few pixels rule out most colour images."""
    for part in (pixels[:: max(1, len(pixels) // 4), :: max(1, pixels.shape[1] // 4)], pixels):
        red, green, blue = part[..., 0], part[..., 1], part[..., 2]
        if not (np.array_equal(red, green) and np.array_equal(red, blue)):
            return False
    return True


def _decode_plain_jpeg(
    data: bytes, pixel_limit: int, min_size: tuple[int, int] | None, tight: bool, grey: bool
) -> Pixels | None:
    """Decode an upright grey or YCbCr JPEG with libjpeg-turbo. Return None for all others."""
    try:
        height, width, colourspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    refuse_pixels(height, width, pixel_limit)
    if colourspace not in ("YCbCr", "Gray") or _orientation(data) != 1:
        return None
    scale = 1 if tight else _MIN_SCALE
    min_height, min_width = (math.ceil(side * scale) for side in min_size or (0, 0))
    eighths = math.ceil(8 * max(min_height / height, min_width / width))  # of each side
    decoded = (eighths / 8) ** 2 if 0 < eighths <= 4 else 1  # the share of the pixels
    coefficients = _COEFFICIENT_BYTES if _keeps_coefficients(data) else 0
    MEMORY.reserve(int(height * width * (coefficients + _JPEG_BYTES * decoded)))
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(
            data,
            "GRAY" if grey or colourspace == "Gray" else "RGB",
            min_height=min(min_height, height),
            min_width=min(min_width, width),
            min_factor=2.0,  # scales such as 3/4 are slower than full size
        )
    except ValueError:  # Pillow tolerates some of these errors, and explains the others
        return None
    return pixels


def _orientation(data: bytes) -> int:
    """Return the orientation of a JPEG, from its EXIF or else its XMP data; 1 if it has none."""
    starts = (start for marker, start in _segments(data) if marker == _APP1)
    if not any(data.startswith(_METADATA, start) for start in starts):
        return 1
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            return read_orientation(image)
    except Exception:  # simplejpeg or decode_with_pillow reports the damage
        return 1


def _keeps_coefficients(data: bytes) -> bool:
    """Return whether a JPEG stores its pixels in several scans: all are kept until the last."""
    components = b""
    for marker, start in _segments(data):
        if marker in _SEQUENTIAL:
            components = data[start + 5 : start + 6]
        elif marker == _START_OF_SCAN:  # of a progressive JPEG, or of some components only
            return not components or data[start : start + 1] < components
    return True


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the marker of each segment of a JPEG up to its first scan, and where its data start."""
    offset = 2
    while offset + 4 <= len(data) and data[offset] == 0xFF:
        if data[offset + 1] == 0xFF:  # a fill byte
            offset += 1
            continue
        yield data[offset + 1], offset + 4
        if data[offset + 1] == _START_OF_SCAN:
            return
        offset += 2 + int.from_bytes(data[offset + 2 : offset + 4])
