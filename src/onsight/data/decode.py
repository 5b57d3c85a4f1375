"""From bytes to pixels: the decoder that training, evaluation and prediction share.

`decode` gives an image as it is stored: uint8 (H, W, C), C = 1 for grey and 3 for colour.
"""

import io
import math

import simplejpeg
from PIL import Image

from onsight.data.bombs import refuse_bombs, refuse_pixels
from onsight.data.foreign import foreign_kind
from onsight.data.pillow_pixels import ORIENTATION, Colour, Pixels, decode_with_pillow
from onsight.data.tiff_process import decode_tiff
from onsight.errors import ImageError

VERSION = 4  # part of every pack's key: increase it when any decoded pixel may change

_APP1, _START_OF_SCAN = 0xE1, 0xDA  # markers of a JPEG
_SCALING_SLACK = 1.5  # a JPEG is decoded at no less than this multiple of the target size
_TIFF = (b"II", b"MM")  # the byte order comes first


def decode(
    data: bytes,
    background: Colour = (255, 255, 255),
    pixel_limit: int = 64_000_000,
    least: tuple[int, int] | None = None,
    closely: bool = False,
    grey: bool = False,
) -> Pixels:
    """Decode a JPEG, PNG, WebP, GIF, BMP or TIFF, recognised by its content, and turn it upright.

    least: the smallest useful (height, width) in pixels; a JPEG at least three times as large is
    decoded at half scale or less, which saves most of the work; with closely, one at least twice
    as large. grey: skip a JPEG's colours. Raises ImageError with the reason.
    """
    if not data:
        raise ImageError("empty file (0 bytes)")
    refuse_bombs(data, pixel_limit)
    if data[:3] == b"\xff\xd8\xff":
        pixels = _decode_plain_jpeg(data, pixel_limit, least, closely, grey)
        if pixels is not None:
            return pixels
    kind = foreign_kind(data)
    if kind:
        raise ImageError(kind)
    if data.startswith(_TIFF):
        return decode_tiff(data, background, pixel_limit)
    return decode_with_pillow(data, background, pixel_limit)


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
            return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF does not make an image unusable
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
