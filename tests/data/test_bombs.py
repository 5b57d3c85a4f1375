"""Images made to exhaust memory or time are refused by their first bytes, and at once."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat, fit
from onsight.data.pixels import probe
from onsight.data.refusals import refuse_bombs, refuse_empty_expanse
from onsight.data.stream import CropWindow, crop_image
from onsight.errors import ImageError

LIMIT = 64_000_000


def encoded(kind: str, image: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photo() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 80, 3), np.uint8)
    return Image.fromarray(pixels)


def refused(data: bytes) -> str:
    with pytest.raises(ImageError) as raised:
        decode(data)
    return str(raised.value)


def test_a_jpeg_of_very_many_scans():
    sound = encoded("JPEG", photo(), progressive=True)
    scan = sound[sound.rindex(b"\xff\xda") : -2]
    bomb = sound[:-2] + 5000 * scan + sound[-2:]
    assert "scans, over the limit of 200" in refused(bomb)
    assert decode(sound).shape == (60, 80, 3)


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 60}, {"exif": b"Exif\0\0MM"}])
def test_the_size_in_a_webp_is_that_of_pillow(options):
    data = encoded("WEBP", photo(), **options)
    refuse_bombs(data, 60 * 80)
    with pytest.raises(ImageError, match="megapixels"):
        refuse_bombs(data, 60 * 80 - 1)


def test_a_webp_of_a_few_bytes_and_many_pixels():
    canvas = bytes(4) + (16382).to_bytes(3, "little") + (16382).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + canvas
    assert "over 64 megapixels" in refused(b"RIFF" + struct.pack("<I", len(body)) + body)


def test_a_run_length_encoded_bmp_of_many_pixels():
    header = struct.pack("<IiiHHIIiiII", 40, 8000, 8000, 1, 8, 1, 0, 0, 0, 256, 0)
    data = b"BM" + struct.pack("<IHHI", 2000, 0, 0, 1078) + header + bytes(1024 + 900)
    assert "slow to decode" in refused(data)


def tiff(order: str, *entries: tuple[int, int, int], big: bool = False) -> bytes:
    """A TIFF with tags (tag, type, count) whose values would follow."""
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
    start += struct.pack(
        order + ("HHQQ" if big else "LH"), *((8, 0, 16) if big else (8,)), len(entries)
    )
    entry = order + ("HHQQ" if big else "HHLL")
    return start + b"".join(struct.pack(entry, *facts, 8) for facts in entries)


@pytest.mark.parametrize(
    "data",
    [
        tiff("<", (256, 3, 1), (273, 3, 1_000_000)),
        tiff(">", (324, 1, 1_000_000)),
        tiff("<", (273, 4, 1_000_000), big=True),
        tiff("<", *[(tag, 5, 100_000) for tag in range(256, 262)]),
        tiff("<", big=True).replace(b"\x10" + bytes(7), b"\x10" + bytes(7) + b"\xff" * 8),
    ],
)
def test_a_tiff_whose_tags_have_very_many_values(data):
    assert "values in its tags, over 500,000" in refused(data)
    assert probe(data) is None


def test_a_tiff_with_much_text_or_many_honest_tiles():
    refuse_bombs(tiff("<", (270, 2, 20_000_000), (700, 1, 5_000_000)), LIMIT)
    refuse_bombs(tiff("<", (324, 4, 249_000), (325, 4, 249_000)), LIMIT)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_very_much_exif_data(kind):
    exif = b"Exif\0\0II*\0" + struct.pack("<LHHHLL4x", 8, 1, 0x0112, 5, 270_000, 26)
    if kind == "JPEG":
        sound = encoded(kind, photo())
        segment = b"\xff\xe1" + struct.pack(">H", 65_535) + exif.ljust(65_533, b"\0")
        data = sound[:2] + 33 * segment + sound[2:]
    else:
        data = encoded(kind, photo(), exif=exif.ljust(2_200_000, b"\0"))
    assert "over 2 MB of EXIF data" in refused(data)
    assert probe(data) is None


def test_very_many_pixels_in_very_few_bytes():
    blank = encoded("PNG", Image.new("1", (7000, 7000)))
    assert refused(blank).startswith("49 megapixels in")
    refuse_empty_expanse(4000, 5500, 8770)  # a flag among real clip art
    refuse_empty_expanse(7000, 7000, 50_000)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_cut_short_or_sound_headers_are_left_to_the_decoder(kind):
    data = encoded(kind, photo())
    for end in (*range(2, 60), len(data)):
        refuse_bombs(data[:end], LIMIT)


def test_a_strip_of_a_image_is_padded_in_a_frame_that_fits_in_memory():
    strip = np.full((60_000, 1, 3), 7, np.uint8)
    target = ImageFormat(32, 32, 3, fit="pad")
    whole = crop_image(strip, CropWindow(1.0, 1.0, 0.0, 0.0), target)
    assert whole.shape == (32, 32, 3)
    assert (np.abs(whole[:, [0, 31]].astype(int) - 255) <= 1).all()
    assert fit(strip, target).shape == whole.shape
