"""Decompression bombs are refused before they cost time or memory."""

import io
import struct
import time
import zlib
from collections.abc import Callable
from contextlib import suppress

import pytest
from PIL import Image

from onsight.data.decode import decode
from onsight.errors import ImageError


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    """Join chunks, each a name and a body, into a PNG file."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*parts) for parts in chunks)


def header(side: int) -> tuple[bytes, bytes]:
    """Return the first chunk of a square RGB image."""
    return b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)


def zeros(count: int) -> bytes:
    """Compress this many zeros, with only a mebibyte of them in memory at a time."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(2**20)) for _ in range(count // 2**20)) + packer.flush()


def giant_png() -> bytes:
    """A PNG of 16 kB whose header says 13,000x13,000 pixels."""
    return png(header(13_000), (b"IDAT", zeros(2**24)), (b"IEND", b""))


def text_png() -> bytes:
    """A small image with a compressed text of a gibibyte."""
    text = b"note\0\0" + zeros(2**30)
    return png(header(8), (b"zTXt", text), (b"IDAT", zlib.compress(bytes(200))), (b"IEND", b""))


def many_frames() -> bytes:
    """An animated GIF of large, empty frames, 10 MB in all."""
    file = io.BytesIO()
    Image.new("P", (2000, 2000)).save(file, "GIF")
    data = file.getvalue()
    frame = data[data.index(b"\x2c") : -1]
    return data[:-1] + frame * (10**7 // len(frame)) + b";"


def giant_jpeg() -> bytes:
    """A JPEG whose header says 65,500x65,500 pixels, with the data of 8x8."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    data = file.getvalue()
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + struct.pack(">HH", 65500, 65500) + data[place + 4 :]


def scans() -> bytes:
    """A progressive JPEG that repeats its last scan 20,000 times."""
    file = io.BytesIO()
    Image.new("RGB", (800, 800)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + 20_000 * scan + data[-2:]


def run_length_bmp() -> bytes:
    """30,000x30,000 pixels, run-length encoded in 32 kB."""
    body = struct.pack("<IiiHHIIiiII", 40, 30_000, 30_000, 1, 8, 1, 0, 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 2000, 0, 0, 1078) + body + bytes(1024 + 30_000)


def webp() -> bytes:
    """A canvas of 16,383x16,383 pixels without an image on it."""
    canvas = bytes(4) + 2 * (16382).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + canvas
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.fixture(scope="module")
def gibibyte_seconds() -> float:
    """Return how long this processor takes to inflate a gibibyte, as a bomb would make it do."""
    packed = zeros(2**30)
    begun = time.process_time()
    unpacker, size = zlib.decompressobj(), 0
    while not unpacker.eof:
        size += len(unpacker.decompress(packed, 2**20))
        packed = unpacker.unconsumed_tail
    assert size == 2**30
    return time.process_time() - begun


@pytest.mark.parametrize("make", [giant_png, giant_jpeg, scans, run_length_bmp, webp])
def test_a_bomb_is_refused_at_once(make: Callable[[], bytes], gibibyte_seconds: float) -> None:
    data = make()
    begun = time.process_time()
    with pytest.raises(ImageError):
        decode(data)
    assert time.process_time() - begun < gibibyte_seconds / 10


@pytest.mark.parametrize("make", [text_png, many_frames])
def test_data_besides_the_first_frame_costs_little(
    make: Callable[[], bytes], gibibyte_seconds: float
) -> None:
    data = make()
    begun = time.process_time()
    with suppress(ImageError):
        assert decode(data).max() == 0
    assert time.process_time() - begun < gibibyte_seconds
