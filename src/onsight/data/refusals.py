"""Files refused by their first bytes: decompression bombs, and files that are not images."""

import struct

from onsight.errors import ImageError
from onsight.limits import (
    EXIF_BYTES,
    EXPANSE_PIXELS,
    JPEG_SCANS,
    PIXELS_A_BYTE,
    SLOW_BMP_PIXELS,
    TIFF_VALUES,
)

# TIFF and BigTIFF headers, and two with the wrong byte order, which Pillow also decodes.
TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"II\0*", b"MM*\0")

_SCAN = b"\xff\xda"  # the marker that begins each scan of a JPEG
_EXIF = b"Exif\0\0"  # begins each segment of EXIF data, of up to 64 kB
_BYTES = (1, 2, 7)  # types of a TIFF's tags whose values Pillow keeps as one object
_LISTS = (273, 320, 324)  # tags whose values it always takes apart: strips, colours, tiles

_MIN_BYTES = 12  # bytes needed to recognise any kind of file
_VIDEO = (
    "a video: extract frames, for example with ffmpeg, and keep the frames of a video on one side "
    "of the split with --group-by"
)
_WEB_PAGE = "a web page, not an image: perhaps its download failed"
_STARTS = {
    b"%PDF-": "a PDF: export its images as PNG or JPEG",
    b"8BPS": "a Photoshop file: export it as PNG or JPEG",
    b"\x1a\x45\xdf\xa3": _VIDEO,
    b"\x00\x00\x01\xba": _VIDEO,
    b"version https://git-lfs": "a pointer of Git LFS, not the image itself: run git lfs pull",
    b"/annex/objects/": "a pointer of git-annex, not the image itself: run git annex get",
    b"PK\x03\x04": "a zip archive among the images: unpack it, or pass it as DATA",
}
_MARKUP = {
    b"<svg": "an SVG, which has no pixels: export it as PNG",
    b"<html": _WEB_PAGE,
    b"<!doctype html": _WEB_PAGE,
}
_BRANDS = {
    b"heic": "HEIC: convert it to JPEG",
    b"heix": "HEIC: convert it to JPEG",
    b"mif1": "HEIF: convert it to JPEG",
    b"avif": "AVIF: convert it to PNG or JPEG",
}


def refuse_bombs(data: bytes, pixel_limit: int) -> None:
    """Raise ImageError for an image that would take seconds or gigabytes to decode.

    pixel_limit applies to WebP, whose decoder allocates memory before its size can be read.
    """
    if data[:2] == b"\xff\xd8":
        scans = data.count(_SCAN)
        if scans > JPEG_SCANS:
            raise ImageError(f"a JPEG of {scans:,} scans, over the limit of {JPEG_SCANS}")
        refuse_exif(2**16 * data.count(_EXIF))
    elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        refuse_pixels(*_webp_size(data), pixel_limit)
    elif data[:2] == b"BM":
        _refuse_slow_bmp(data)
    elif data.startswith(TIFF):
        _refuse_many_values(data)


def refuse_exif(size: int) -> None:
    """Raise ImageError for so many bytes of EXIF data that reading them takes seconds."""
    if size > EXIF_BYTES:
        raise ImageError(f"over {EXIF_BYTES / 2**20:g} MB of EXIF data")


def refuse_pixels(height: int, width: int, limit: int) -> None:
    """Raise ImageError for more pixels than the limit, or none."""
    if height * width > limit:
        raise ImageError(f"over {limit / 1e6:g} megapixels (--pixel-limit-megapixels)")
    if height < 1 or width < 1:
        raise ImageError("has no pixels")


def refuse_empty_expanse(height: int, width: int, file_bytes: int) -> None:
    """Raise ImageError if a huge image is stored in very few bytes."""
    pixels = height * width
    if pixels > EXPANSE_PIXELS and pixels > PIXELS_A_BYTE * file_bytes:
        raise ImageError(f"{pixels / 1e6:.0f} megapixels in {file_bytes:,} bytes: a bomb, or blank")


def recognise_foreign(data: bytes) -> str:
    """Return the kind of a file that is no image and a remedy, or an empty string."""
    if len(data) < _MIN_BYTES:
        return ""
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], _VIDEO)
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return _VIDEO
    for start, kind in _STARTS.items():
        if data.startswith(start):
            return kind
    head = data[:512].lstrip().lower()
    if head.startswith(b"<"):
        return next((kind for tag, kind in _MARKUP.items() if tag in head), "")
    return ""


def _refuse_many_values(data: bytes) -> None:
    """Raise ImageError for a TIFF whose tags have so many values that they exhaust the memory."""
    order = "<" if data[:2] == b"II" else ">"
    is_big = data[2:3] == b"+"  # as Pillow tells a BigTIFF
    formats, at = ("QQ", 8) if is_big else ("LH", 4)
    try:
        (start,) = struct.unpack_from(order + formats[0], data, at)
        (tags,) = struct.unpack_from(order + formats[1], data, start)
    except (struct.error, OverflowError):  # decoding reports the damage
        return
    entry = struct.Struct(order + ("HHQ8x" if is_big else "HHL4x"))
    start += 8 if is_big else 2
    total, tags = tags, min(tags, TIFF_VALUES, (len(data) - start) // entry.size)
    entries = entry.iter_unpack(memoryview(data)[start : start + tags * entry.size])
    total += sum(n for tag, kind, n in entries if kind not in _BYTES or tag in _LISTS)
    if total > TIFF_VALUES:
        raise ImageError(f"a TIFF with {total:,} values in its tags, over {TIFF_VALUES:,}")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return (height, width) from a WebP's first chunk, or (1, 1) if it cannot be read."""
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
