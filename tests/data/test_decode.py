"""Oracle: Pillow's own conversions and hand-made pixels."""

import io
import struct
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from onsight.data.decode import decode, prepare_image
from onsight.data.fit import ImageFormat, fit
from onsight.data.pixels import probe
from onsight.errors import ImageError

RNG = np.random.default_rng(0)


def encoded(image, form="PNG", **options):
    data = io.BytesIO()
    image.save(data, form, **options)
    return data.getvalue()


def smooth(height=40, width=60):
    y, x = np.mgrid[:height, :width]
    return np.stack([4 * x, 5 * y, 2 * (x + y)], axis=2).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("form", ["PNG", "BMP", "TIFF", "GIF", "WEBP"])
def test_lossless_formats_give_the_pixels_exactly(form):
    colours = RNG.integers(0, 4, (20, 30, 3), np.uint8) * 80  # 64 colours, so GIF keeps them
    options = {"lossless": True, "exact": True} if form == "WEBP" else {}
    image = Image.fromarray(colours)
    if form == "GIF":
        image = image.quantize(64, dither=Image.Dither.NONE)
        colours = np.asarray(image.convert("RGB"))
    assert np.array_equal(decode(encoded(image, form, **options)), colours)


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_equals_pillow(subsampling, progressive):
    data = encoded(
        Image.fromarray(smooth()), "JPEG", subsampling=subsampling, progressive=progressive
    )
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    difference = np.abs(decode(data).astype(int) - expected)
    assert difference.max() <= 1


def test_format_is_recognised_by_content_not_by_name():
    assert decode(encoded(Image.fromarray(smooth()), "BMP")).shape == (40, 60, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(form, orientation):
    pixels = smooth()
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95, "subsampling": 0} if form == "JPEG" else {}
    if form == "WEBP":
        options = {"lossless": True}
    turns = {
        1: pixels,
        2: pixels[:, ::-1],
        3: pixels[::-1, ::-1],
        4: pixels[::-1],
        5: pixels.transpose(1, 0, 2),
        6: np.rot90(pixels, -1),
        7: pixels[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(pixels),
    }
    data = encoded(Image.fromarray(pixels), form, exif=exif, **options)
    expected = turns[orientation]
    decoded = decode(data)
    assert decoded.shape == expected.shape
    assert np.abs(decoded.astype(int) - expected).max() <= (6 if form == "JPEG" else 0)
    assert probe(data) == (*expected.shape[:2], 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", [6, 9])
@pytest.mark.parametrize("kind", ["exif", "xmp"])
def test_orientation_may_be_in_xmp_alone_and_an_invalid_one_turns_nothing(form, orientation, kind):
    exif = Image.Exif()
    exif[0x0112] = orientation
    xmp = f'<rdf:Description tiff:Orientation="{orientation}"/>'.encode()
    metadata = {"exif": exif} if kind == "exif" else {"xmp": xmp}
    if (form, kind) == ("PNG", "xmp"):
        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp.decode())
        metadata = {"pnginfo": info}
    data = encoded(Image.fromarray(smooth()), form, **metadata)
    height, width, _ = smooth().shape
    expected = (width, height) if orientation == 6 else (height, width)
    assert decode(data).shape[:2] == expected
    assert probe(data) == (*expected, 3)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_entry_beside_the_orientation_does_not_matter(form):
    entries = [
        struct.pack("<HHLHxx", 0x0112, 3, 1, 6),
        struct.pack("<HHL4s", 0x011A, 2, 3, b"72\0"),
    ]
    exif = b"Exif\0\0II*\0" + struct.pack("<LH", 8, len(entries)) + b"".join(entries) + bytes(4)
    data = encoded(Image.fromarray(smooth()), form, exif=exif)
    assert decode(data).shape[:2] == smooth().shape[1::-1]


def test_orientation_is_found_behind_other_segments_and_fill_bytes():
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = encoded(Image.fromarray(smooth()), "JPEG", icc_profile=b"x" * 3000, comment=b"hello")
    turned = encoded(Image.fromarray(smooth()), "JPEG", exif=exif)
    start = turned.index(b"\xff\xe1")
    segment = turned[start : start + 2 + int.from_bytes(turned[start + 2 : start + 4])]
    tables = plain.index(b"\xff\xdb")
    late = plain[:tables] + b"\xff" + segment + plain[tables:]
    assert decode(plain).shape[:2] == smooth().shape[:2]
    assert decode(late).shape[:2] == smooth().shape[1::-1]
    assert (
        decode(plain[:tables] + b"\xff\xfe\x00\x08Exif\0\0" + plain[tables:]).shape[:2]
        == (smooth().shape[:2])
    )


def test_a_jpeg_decoded_without_its_colours_is_its_luma():
    data = encoded(Image.fromarray(smooth()), "JPEG", quality=95)
    grey = decode(data, grey=True)
    luma = np.asarray(Image.open(io.BytesIO(data)).convert("L"), int)
    assert grey.shape == (*luma.shape, 1)
    assert np.abs(grey[:, :, 0] - luma).max() <= 2
    assert np.array_equal(grey, decode(data, grey=True, min_size=(30, 40)))


@pytest.mark.parametrize(
    ("times", "tight", "scale"),
    [(2, False, 1), (3, False, 2), (6, False, 4), (2, True, 2), (4, True, 4)],
)
def test_a_jpeg_is_decoded_at_the_scale_that_leaves_detail_enough(times, tight, scale):
    data = encoded(Image.fromarray(smooth(40 * times, 60 * times)), "JPEG")
    decoded = decode(data, min_size=(40, 60), tight=tight)
    assert decoded.shape == (40 * times // scale, 60 * times // scale, 3)


def test_alpha_is_laid_on_the_background():
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[..., 0] = 200
    pixels[..., 3] = [[0, 255], [128, 255]]
    decoded = decode(encoded(Image.fromarray(pixels)), background=(10, 20, 30))
    assert decoded[0, 0].tolist() == [10, 20, 30]
    assert decoded[0, 1].tolist() == [200, 0, 0]
    assert np.abs(decoded[1, 0].astype(int) - [105, 10, 15]).max() <= 1


def test_palette_transparency_is_laid_on_the_background():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    data = encoded(image, transparency=0)
    assert decode(data, background=(1, 2, 3))[0].tolist() == [[1, 2, 3], [0, 0, 255]]


def test_grey_stays_one_channel():
    ramp = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(decode(encoded(Image.fromarray(ramp)))[:, :, 0], ramp)
    assert decode(encoded(Image.fromarray(ramp), "JPEG")).shape == (16, 16, 1)
    assert decode(encoded(Image.fromarray(ramp > 127))).shape == (16, 16, 1)
    grey_alpha = Image.merge("LA", [Image.fromarray(ramp), Image.new("L", (16, 16), 255)])
    assert np.array_equal(decode(encoded(grey_alpha))[:, :, 0], ramp)
    palette = Image.fromarray(ramp)
    palette = palette.quantize(256)
    assert decode(encoded(palette)).shape == (16, 16, 1)


def tiff_of_12_bits(values):
    """A grey TIFF of 12 bits per sample, two of which fill three bytes; values: (H, even W)."""
    pairs = np.asarray(values, np.uint16).reshape(-1, 2)
    packed = [pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255]
    strip = np.stack(packed, axis=1).astype(np.uint8).tobytes()
    height, width = np.shape(values)
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 273: 8 + 2 + 9 * 12 + 4, 277: 1}
    tags |= {278: height, 279: len(strip)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHIH", b"II", 42, 8, 9) + entries + bytes(4) + strip


def test_a_tiff_of_16_bit_colours_is_turned_once():
    colours = RNG.integers(0, 256, (2, 3, 3), np.uint8)
    start = 8 + 2 + 10 * 12 + 4
    tags = [(256, 4, 1, 3), (257, 4, 1, 2), (258, 3, 3, start), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [
        (273, 4, 1, start + 6),
        (274, 3, 1, 6),
        (277, 3, 1, 3),
        (278, 4, 1, 2),
        (279, 4, 1, 36),
    ]
    data = struct.pack("<2sHIH", b"II", 42, 8, len(tags))
    data += b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    data += struct.pack("<HHH", 16, 16, 16) + (colours.astype("<u2") * 257).tobytes()
    assert np.array_equal(decode(data), np.rot90(colours, -1))


def test_white_of_a_12_bit_tiff_is_4095():
    values = [[0, 16, 2048, 4095], [4080, 1, 8, 9]]
    pixels = decode(tiff_of_12_bits(values))[:, :, 0]
    assert (pixels == np.round(np.array(values) * 255 / 4095)).all()


@pytest.mark.parametrize("highest", [255, 65535, 2**31 - 1])
def test_32_bit_pixels_are_refused_whatever_they_hold(highest):
    values = np.array([[0, highest]], np.int32)
    with pytest.raises(ImageError, match="32-bit pixels have no stated range"):
        decode(encoded(Image.fromarray(values), "TIFF"))


def test_floating_point_pixels_are_refused():
    with pytest.raises(ImageError, match="floating-point pixels have no stated range"):
        decode(encoded(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))


@pytest.mark.parametrize("background", [(255, 255, 255), (255, 0, 10)])
def test_the_transparent_grey_of_a_16_bit_png_shows_the_background(background):
    values = np.array([[0, 1000, 65535]], np.uint16)
    pixels = decode(encoded(Image.fromarray(values), "PNG", transparency=1000), background)
    grey = [background[0]] if len(set(background)) == 1 else list(background)
    assert pixels[0].tolist() == [[0] * len(grey), grey, [255] * len(grey)]


def test_sixteen_bits_are_scaled_not_clipped():
    values = np.array([[0, 1000, 32768, 40000, 65535]], np.uint16)
    decoded = decode(encoded(Image.fromarray(values)))
    assert decoded[0, :, 0].tolist() == [0, 4, 128, 156, 255]
    assert decode(encoded(Image.fromarray(values), "TIFF"))[0, :, 0].tolist() == [
        0,
        4,
        128,
        156,
        255,
    ]


def test_cmyk_jpeg_becomes_colour():
    image = Image.fromarray(smooth()).convert("CMYK")
    data = encoded(image, "JPEG", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(decode(data), expected)
    assert np.abs(decode(data).astype(int) - smooth()).max() <= 12


def test_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for form in ("GIF", "WEBP", "PNG"):
        options = {"lossless": True} if form == "WEBP" else {}
        data = encoded(frames[0], form, save_all=True, append_images=frames[1:], **options)
        assert decode(data)[0, 0].tolist() == [255, 0, 0]


def bomb_png(width, height):
    """A PNG header that promises a huge image and holds nothing."""
    import zlib

    def chunk(kind, body):
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")


@pytest.mark.parametrize("side", [8_100, 13_000, 60_000])
def test_pixel_limit_is_checked_before_anything_is_decoded(side):
    with pytest.raises(ImageError, match="megapixels"):
        decode(bomb_png(side, side))


def test_pixel_limit_of_a_jpeg():
    data = encoded(Image.fromarray(smooth(100, 100)), "JPEG")
    with pytest.raises(ImageError, match="over 0.005 megapixels"):
        decode(data, pixel_limit=5_000)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty file"),
        (b"hello, this is text", "not an image"),
        (b"\xff\xd8\xff" + b"\0" * 100, "broken|not an image"),
        (encoded(Image.fromarray(smooth()), "PNG")[:80], "broken"),
        (encoded(Image.fromarray(smooth(200, 200)), "JPEG")[:1500], "broken"),
        (b"%PDF-1.4 nothing", "a PDF"),
    ],
)
def test_unusable_bytes_give_a_reason(data, reason):
    with pytest.raises(ImageError, match=reason):
        decode(data)


@pytest.mark.parametrize("error", [AssertionError(), KeyError("x")])
def test_damage_that_pillow_does_not_explain_is_described(monkeypatch, error):
    def fail(*given, **named):
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(ImageError, match="^broken: its content cannot be decoded$"):
        decode(encoded(Image.fromarray(smooth()), "PNG"))


def test_random_damage_never_escapes_as_another_error():
    goods = [
        encoded(Image.fromarray(smooth()), form)
        for form in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP")
    ]
    refused = 0
    for good in goods:
        for _ in range(60):
            bad = bytearray(good)
            for place in RNG.integers(0, len(bad), 4):
                bad[place] = RNG.integers(256)
            try:
                decode(bytes(bad), pixel_limit=1_000_000)
            except ImageError:
                refused += 1
    assert refused > 50


def test_scaled_jpeg_decoding_stays_close_to_full():
    data = encoded(Image.fromarray(smooth(400, 600)).resize((1200, 800)), "JPEG", quality=95)
    scaled = decode(data, min_size=(50, 50))
    assert 100 <= min(scaled.shape[:2]) < 400
    target = ImageFormat(50, 50, 3)
    difference = np.abs(fit(scaled, target).astype(int) - fit(decode(data), target))
    assert difference.max() <= 8
    assert difference.mean() < 1


def test_fit_stretches_crops_and_pads():
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20] = 255
    stretched = fit(pixels, ImageFormat(10, 10, 3, "stretch"))
    assert stretched[5, 2, 0] == 255
    assert stretched[5, 7, 0] == 0
    cropped = fit(pixels, ImageFormat(20, 20, 3, "crop"))
    assert np.array_equal(cropped, pixels[:, 10:30])
    padded = fit(pixels, ImageFormat(40, 40, 3, "pad", background=(9, 8, 7)))
    assert padded[0, 0].tolist() == [9, 8, 7]
    assert np.array_equal(padded[10:30], pixels)


def test_fit_converts_channels():
    grey = np.full((4, 4, 1), 7, np.uint8)
    assert np.array_equal(fit(grey, ImageFormat(4, 4, 3)), np.full((4, 4, 3), 7, np.uint8))
    colour = smooth(8, 8)
    expected = np.asarray(Image.fromarray(colour).convert("L"))
    assert np.array_equal(fit(colour, ImageFormat(8, 8, 1))[:, :, 0], expected)


@pytest.mark.parametrize(
    ("start", "is_tiff"),
    [(b"II*\0", True), (b"MM\0*", True), (b"II+\0", True), (b"MM\0+", True), (b"II. Notes", False)],
)
def test_only_a_tiff_header_starts_the_tiff_decoder(monkeypatch, start, is_tiff):
    decoded = []
    monkeypatch.setattr("onsight.data.decode.decode_tiff", lambda *given: decoded.append(given))
    with suppress(ImageError):
        decode(start + b"x" * 20)
    assert bool(decoded) == is_tiff


@pytest.mark.parametrize("input_size", [None, (80, 120)])
def test_models_of_any_size_get_the_pixels_that_they_share(input_size):
    """A JPEG is decoded at a scale that depends on the size; that must not be the model's own."""
    data = encoded(Image.fromarray(smooth(800, 1200)), "JPEG")
    shared = ImageFormat(100, 150, 3, input_size=input_size)
    expected = prepare_image(data, shared)
    for size in ((100, 150), (20, 30), (300, 450), (80, 120)):
        alone = shared.for_input(size)
        assert alone.model_size == size
        for pixels, other in zip(prepare_image(data, alone), expected, strict=True):
            assert np.array_equal(pixels, other)
    assert prepare_image(data, ImageFormat(20, 30, 3))[0].shape != expected[0].shape
