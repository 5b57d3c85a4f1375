"""Images made to exhaust memory or time are refused by their first bytes, and at once."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat, fit
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
