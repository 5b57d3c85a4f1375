"""Images made to exhaust memory or time, refused by a look at their first bytes."""

import struct

from onsight.errors import ImageError
from onsight.limits import EXPANSE_PIXELS, JPEG_SCANS, PIXELS_A_BYTE, SLOW_BMP_PIXELS

_SCAN = b"\xff\xda"


def refuse_bombs(data: bytes, pixel_limit: int) -> None:
    """Raise ImageError for an image that would take seconds or gigabytes to decode.

    pixel_limit: for formats whose decoder takes memory before it can be asked for the size.
    """
    if data[:2] == b"\xff\xd8":
        _refuse_many_scans(data)
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        refuse_pixels(*_webp_size(data), pixel_limit)
    elif data[:2] == b"BM":
        _refuse_slow_bmp(data)


def refuse_pixels(height: int, width: int, limit: int) -> None:
    """Raise ImageError for more pixels than the limit, or none."""
    if height * width > limit:
        raise ImageError(f"over {limit / 1e6:g} megapixels (--pixel-limit-megapixels)")
    if height < 1 or width < 1:
        raise ImageError("has no pixels")


def refuse_empty_expanse(height: int, width: int, count: int) -> None:
    """Raise ImageError for very many pixels in very few bytes. count: of the file."""
    pixels = height * width
    if pixels > EXPANSE_PIXELS and pixels > PIXELS_A_BYTE * count:
        raise ImageError(f"{pixels / 1e6:.0f} megapixels in {count:,} bytes: a bomb, or blank")


def _refuse_many_scans(data: bytes) -> None:
    scans = data.count(_SCAN)
    if scans > JPEG_SCANS:
        raise ImageError(f"a JPEG of {scans:,} scans, over the limit of {JPEG_SCANS}")


def _webp_size(data: bytes) -> tuple[int, int]:
    """(height, width) in a WebP's first chunk; (1, 1) if it cannot be read."""
    kind, body = data[12:16], data[20:30]
    if len(body) < 10:
        return 1, 1
    if kind == b"VP8X":
        width, height = (int.from_bytes(body[at : at + 3], "little") for at in (4, 7))
        return height + 1, width + 1
    if kind == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits >> 14 & 0x3FFF) + 1, (bits & 0x3FFF) + 1
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", body[6:10])
        return height & 0x3FFF, width & 0x3FFF
    return 1, 1


def _refuse_slow_bmp(data: bytes) -> None:
    if len(data) < 34:
        return
    width, height, _, _, compression = struct.unpack("<iiHHI", data[18:34])
    if compression in (1, 2) and abs(width * height) > SLOW_BMP_PIXELS:
        raise ImageError(
            f"a run-length encoded BMP over {SLOW_BMP_PIXELS / 1e6:g} megapixels, slow to decode"
        )
