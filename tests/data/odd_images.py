"""Images in every variant that people have, with the pixels that they mean.

Each is built from its values by the format's definition, so that no decoder is its own judge. The
values rise from corner to corner, with all low bytes, so that a lost bit, channel or turn shows.
"""

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

HEIGHT, WIDTH = 24, 40
GROUND = 255  # white, on which transparent pixels are laid

Pixels = NDArray[np.uint8]


class Odd(NamedTuple):
    """An image's bytes, its pixels (H, W, 1 or 3), and how far a decoder may be from them."""

    name: str
    data: bytes
    expected: Pixels
    tolerance: int = 0


def odd_images() -> Iterator[Odd]:
    """All variants."""
    for make in (_png_grey, _png_colour, _png_palette, _tiff, _bmp, _jpeg, _animations, _webp):
        yield from make()


def ramp(channels: int, bits: int, step: int = 0) -> NDArray[np.int64]:
    """Values (H, W, C) of so many bits, different in each channel."""
    y, x, c = np.mgrid[:HEIGHT, :WIDTH, :channels]
    most = 2**bits - 1
    share = (y / (HEIGHT - 1) + x / (WIDTH - 1) + c / 3 + step / 7) % 1.0
    return np.round(share * most).astype(np.int64)


def scaled(values: NDArray[np.int64], bits: int) -> Pixels:
    """Values of so many bits as 8, white as 255."""
    most = 2**bits - 1
    return ((values * 255 + most // 2) // most).astype(np.uint8)


def laid(colours: Pixels, alpha: Pixels) -> Pixels:
    """Colours (H, W, C) on the ground; alpha (H, W, 1)."""
    share = alpha / 255
    return np.round(colours * share + GROUND * (1 - share)).astype(np.uint8)


def png(kind: int, bits: int, rows: list[bytes], *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG of a colour type and its packed rows. Source: https://www.w3.org/TR/png-3/"""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, kind, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", body), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def packed(values: NDArray[np.int64], bits: int) -> list[bytes]:
    """Rows of values (H, W, C), most significant bits first."""
    flat = values.reshape(len(values), -1)
    if bits == 16:
        return [row.astype(">u2").tobytes() for row in flat]
    if bits == 8:
        return [row.astype(np.uint8).tobytes() for row in flat]
    places = np.arange(bits - 1, -1, -1)
    return [np.packbits((row[:, None] >> places & 1).ravel()).tobytes() for row in flat]


def _png_grey() -> Iterator[Odd]:
    for bits in (1, 2, 4, 8, 16):
        values = ramp(1, bits)
        yield Odd(f"png-grey-{bits}", png(0, bits, packed(values, bits)), scaled(values, bits))
    for bits in (8, 16):
        values, alpha = ramp(1, bits), ramp(1, bits, step=3)
        rows = packed(np.dstack([values, alpha]), bits)
        expected = laid(scaled(values, bits), scaled(alpha, bits))
        yield Odd(f"png-grey-alpha-{bits}", png(4, bits, rows), expected, tolerance=1)
        clear = values[5, 5, 0]
        chunk = (b"tRNS", struct.pack(">H", clear))
        expected = np.where(values == clear, GROUND, scaled(values, bits)).astype(np.uint8)
        yield Odd(f"png-grey-clear-{bits}", png(0, bits, packed(values, bits), chunk), expected)


def _png_colour() -> Iterator[Odd]:
    for bits in (8, 16):
        values, alpha = ramp(3, bits), ramp(1, bits, step=3)
        rows = packed(values, bits)
        yield Odd(f"png-colour-{bits}", png(2, bits, rows), scaled(values, bits))
        expected = laid(scaled(values, bits), scaled(alpha, bits))
        rows_with_alpha = packed(np.dstack([values, alpha]), bits)
        yield Odd(f"png-colour-alpha-{bits}", png(6, bits, rows_with_alpha), expected, tolerance=1)
        clear = values[5, 5]
        chunk = (b"tRNS", struct.pack(">HHH", *clear))
        hidden = (values == clear).all(axis=2, keepdims=True)
        expected = np.where(hidden, GROUND, scaled(values, bits)).astype(np.uint8)
        yield Odd(f"png-colour-clear-{bits}", png(2, bits, rows, chunk), expected)


def _png_palette() -> Iterator[Odd]:
    for bits in (1, 2, 4, 8):
        count = 2**bits
        places = ramp(1, bits)[:, :, 0]
        palette = np.random.default_rng(bits).integers(0, 256, (count, 3), np.uint8)
        chunk = (b"PLTE", palette.tobytes())
        rows = packed(places[:, :, None], bits)
        yield Odd(f"png-palette-{bits}", png(3, bits, rows, chunk), palette[places])
    alpha = np.linspace(0, 255, count).astype(np.uint8)
    expected = laid(palette[places], alpha[places][:, :, None])
    data = png(3, 8, rows, chunk, (b"tRNS", alpha.tobytes()))
    yield Odd("png-palette-alpha", data, expected, tolerance=1)


def tiff(values: NDArray[np.int64], bits: int, order: str) -> bytes:
    """An uncompressed TIFF (H, W, C) in little (<) or big (>) byte order."""
    channels = values.shape[2]
    body = values.astype(f"{order}u{bits // 8}").tobytes()
    sizes = struct.pack(f"{order}{channels}H", *[bits] * channels)
    at_sizes = 8 + len(body)
    at_entries = at_sizes + len(sizes) + len(sizes) % 2

    def entry(tag: int, kind: int, count: int, value: int) -> bytes:
        cell = struct.pack(f"{order}HH", value, 0) if kind == 3 else struct.pack(f"{order}I", value)
        return struct.pack(f"{order}HHI", tag, kind, count) + cell

    depth = (
        entry(258, 3, 1, bits)
        if channels == 1
        else (struct.pack(f"{order}HHII", 258, 3, channels, at_sizes))
    )
    entries = [
        entry(256, 4, 1, WIDTH),
        entry(257, 4, 1, HEIGHT),
        depth,
        entry(259, 3, 1, 1),
        entry(262, 3, 1, 1 if channels == 1 else 2),
        entry(273, 4, 1, 8),
        entry(277, 3, 1, channels),
        entry(278, 4, 1, HEIGHT),
        entry(279, 4, 1, len(body)),
    ]
    if channels == 4:
        entries.append(entry(338, 3, 1, 2))  # the fourth is alpha, not multiplied in
    start = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, at_entries)
    listing = struct.pack(f"{order}H", len(entries)) + b"".join(entries) + bytes(4)
    return start + body + sizes + bytes(len(sizes) % 2) + listing


def _tiff() -> Iterator[Odd]:
    for order, name in (("<", "little"), (">", "big")):
        for bits in (8, 16):
            grey, colour, alpha = ramp(1, bits), ramp(3, bits), ramp(1, bits, step=3)
            yield Odd(f"tiff-grey-{bits}-{name}", tiff(grey, bits, order), scaled(grey, bits))
            data = tiff(colour, bits, order)
            yield Odd(f"tiff-colour-{bits}-{name}", data, scaled(colour, bits))
            data = tiff(np.dstack([colour, alpha]), bits, order)
            expected = laid(scaled(colour, bits), scaled(alpha, bits))
            yield Odd(f"tiff-colour-alpha-{bits}-{name}", data, expected, tolerance=1)
    colour = scaled(ramp(3, 8), 8)
    for packing in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        yield Odd(packing, _saved(Image.fromarray(colour), "TIFF", compression=packing), colour)
    ink = Image.fromarray(colour).convert("CMYK")
    yield Odd("tiff-cmyk", _saved(ink, "TIFF"), np.asarray(ink.convert("RGB")))


def _bmp() -> Iterator[Odd]:
    colour = scaled(ramp(3, 8), 8)
    yield Odd("bmp-colour", _saved(Image.fromarray(colour), "BMP"), colour)
    grey = scaled(ramp(1, 8), 8)
    yield Odd("bmp-grey", _saved(Image.fromarray(grey[:, :, 0]), "BMP"), grey)
    black = ramp(1, 1).astype(bool)
    data = _saved(Image.fromarray(black[:, :, 0]), "BMP")
    yield Odd("bmp-1-bit", data, scaled(black.astype(np.int64), 1))


def _jpeg() -> Iterator[Odd]:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    colour = np.dstack([4 * x, 5 * y, 2 * (x + y)]).astype(np.uint8)
    image = Image.fromarray(colour)
    for orientation, turned in _turns(colour):
        exif = Image.Exif()
        exif[0x0112] = orientation
        data = _saved(image, "JPEG", quality=98, subsampling=0, exif=exif)
        yield Odd(f"jpeg-turned-{orientation}", data, turned, tolerance=4)
    data = _saved(image, "JPEG", quality=98, progressive=True, subsampling=0)
    yield Odd("jpeg-progressive", data, colour, tolerance=4)
    grey = image.convert("L")
    data = _saved(grey, "JPEG", quality=98)
    yield Odd("jpeg-grey", data, np.asarray(grey)[:, :, None], tolerance=4)
    data = _saved(image.convert("CMYK"), "JPEG", quality=98, subsampling=0)
    yield Odd("jpeg-cmyk", data, colour, tolerance=4)


def _turns(pixels: Pixels) -> Iterator[tuple[int, Pixels]]:
    """Each EXIF orientation, and how an image stored so is seen."""
    flipped = pixels.transpose(1, 0, 2)
    seen: list[Callable[[], Pixels]] = [
        lambda: pixels,
        lambda: pixels[:, ::-1],
        lambda: pixels[::-1, ::-1],
        lambda: pixels[::-1],
        lambda: flipped,
        lambda: flipped[:, ::-1],
        lambda: flipped[::-1, ::-1],
        lambda: flipped[::-1],
    ]
    yield from ((number, make()) for number, make in enumerate(seen, 1))


def _animations() -> Iterator[Odd]:
    """The first frame counts."""
    places = ramp(1, 6)[:, :, 0].astype(np.uint8)
    palette = np.random.default_rng(9).integers(0, 256, (64, 3), np.uint8)
    image = Image.frombytes("P", (WIDTH, HEIGHT), places.tobytes())
    image.putpalette(palette.tobytes() + bytes(3 * 192))
    other = Image.new("RGB", image.size, (9, 9, 9))
    yield Odd("gif", _saved(image, "GIF"), palette[places])
    many = {"save_all": True, "append_images": [other.convert("P")]}
    yield Odd("gif-animated", _saved(image, "GIF", **many), palette[places])
    clear = int(places[5, 5])
    expected = np.where((places == clear)[:, :, None], GROUND, palette[places]).astype(np.uint8)
    yield Odd("gif-clear", _saved(image, "GIF", transparency=clear), expected)
    colour = scaled(ramp(3, 8), 8)
    data = _saved(Image.fromarray(colour), "PNG", save_all=True, append_images=[other])
    yield Odd("png-animated", data, colour)


def _webp() -> Iterator[Odd]:
    colour, alpha = scaled(ramp(3, 8), 8), scaled(ramp(1, 8, step=3), 8)
    exact = {"lossless": True, "exact": True}
    yield Odd("webp", _saved(Image.fromarray(colour), "WEBP", **exact), colour)
    image = Image.fromarray(np.dstack([colour, alpha]))
    yield Odd("webp-alpha", _saved(image, "WEBP", **exact), laid(colour, alpha), tolerance=1)
    many = {"save_all": True, "append_images": [Image.new("RGB", (WIDTH, HEIGHT))]}
    yield Odd("webp-animated", _saved(Image.fromarray(colour), "WEBP", **exact, **many), colour)


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
