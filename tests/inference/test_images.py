"""Oracle: the same image as a file, which goes through the one decoder."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat
from onsight.errors import ImageError
from onsight.inference.images import is_single_image, read_image

TARGET = ImageFormat(9, 14, 3, background=(10, 200, 30))
COLOURS = np.random.default_rng(0).integers(0, 255, (9, 14, 4), np.uint8)
ORIENTATION = 0x0112

# Every mode that Pillow can write somewhere without loss and read again.
STORED = [
    *((mode, "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    *((mode, "TIFF") for mode in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")),
    *((mode, "TIFF") for mode in ("LAB", "I;16")),
    ("P", "GIF"),
    ("RGB", "BMP"),
]


def image_of(mode):
    """An image of a mode, with partial transparency where the mode has it."""
    if mode in ("I", "I;16"):
        deep = (COLOURS[:, :, 0].astype(np.uint16) * 257 + COLOURS[:, :, 1]).clip(0, 65535)
        return Image.fromarray(deep.astype(np.uint16 if mode == "I;16" else np.int32))
    if mode == "PA":
        image = Image.fromarray(COLOURS[:, :, :3]).convert("P").convert("PA")
        image.putalpha(Image.fromarray(COLOURS[:, :, 3]))
        return image
    return Image.fromarray(COLOURS).convert("RGBA" if "A" in mode else "RGB").convert(mode)


def stored(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(("mode", "kind"), STORED)
def test_an_image_of_every_mode_gives_the_pixels_of_its_file(mode, kind):
    image = image_of(mode)
    data = stored(image, kind)
    opened = Image.open(io.BytesIO(data))
    assert opened.mode == mode
    expected = read_image(data, TARGET)
    for given in (opened, opened, image):  # when it is loaded, too
        assert np.array_equal(read_image(given, TARGET), expected)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_upright_and_stays_as_it_is(kind, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = stored(Image.fromarray(COLOURS[:, :, :3]), kind, exif=exif)
    opened = Image.open(io.BytesIO(data))
    assert np.array_equal(read_image(opened, TARGET), read_image(data, TARGET))
    fresh = Image.open(io.BytesIO(data))
    assert np.array_equal(np.asarray(opened), np.asarray(fresh))
    assert dict(opened.getexif()) == dict(fresh.getexif())
    if kind == "PNG":
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert np.array_equal(decode(stored(upright, "PNG")), decode(data))


def test_transparent_colours_of_a_palette_show_the_background():
    image = Image.fromarray(COLOURS[:, :, :3]).convert("P")
    data = stored(image, "PNG", transparency=int(np.asarray(image)[4, 5]))
    opened = Image.open(io.BytesIO(data))
    pixels = read_image(opened, TARGET)
    assert tuple(pixels[4, 5]) == TARGET.background
    assert np.array_equal(pixels, read_image(data, TARGET))


def test_images_that_no_file_holds_are_converted_or_refused_with_a_reason():
    rgba = Image.fromarray(COLOURS)
    for mode in ("RGBa", "RGBX", "HSV", "LA"):
        assert read_image(rgba.convert(mode), TARGET).shape == (9, 14, 3)
    premultiplied = rgba.convert("LA").convert("La")
    plain = read_image(premultiplied.convert("LA"), TARGET)
    assert np.array_equal(read_image(premultiplied, TARGET), plain)
    with pytest.raises(ImageError, match="floating-point"):
        read_image(rgba.convert("F"), TARGET)
    with pytest.raises(ImageError, match="megapixels"):
        read_image(rgba, ImageFormat(9, 14, 3, pixel_limit=100))
    closed = Image.open(io.BytesIO(stored(rgba, "PNG")))
    closed.close()
    with pytest.raises(ImageError, match="broken"):
        read_image(closed, TARGET)


@pytest.mark.parametrize("channels", [0, 1, 3, 4])
def test_an_array_gives_the_pixels_of_its_file(channels):
    array = COLOURS[:, :, :channels] if channels else COLOURS[:, :, 0]
    flat = array[:, :, 0] if channels == 1 else array
    data = stored(Image.fromarray(flat), "PNG")
    assert np.array_equal(read_image(array, TARGET), read_image(data, TARGET))
    tensor = torch.from_numpy(np.atleast_3d(array)).permute(2, 0, 1)
    for same in (tensor, tensor / 255):
        assert np.array_equal(read_image(same, TARGET), read_image(data, TARGET))
    turned = np.ascontiguousarray(array[::-1])[::-1]  # the same through negative strides
    assert np.array_equal(read_image(turned, TARGET), read_image(data, TARGET))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (COLOURS.astype(np.float32), "has floats from 0 to 254, but they must be from 0 to 1"),
        (COLOURS.astype(np.int64), r"an array of int64 \(9, 14, 4\) is not an image: pass"),
        (COLOURS.astype(np.uint16), "an array of uint16"),
        (COLOURS[:, :, 0] > 9, "an array of bool"),
        (COLOURS[:, :, :2], r"an array of uint8 \(9, 14, 2\)"),
        (COLOURS[0, 0], r"an array of uint8 \(4,\)"),
        (np.zeros((0, 4, 3), np.uint8), "has no pixels"),
        (None, "a NoneType is not an image: pass a path"),
        (7, "a int is not an image"),
    ],
)
def test_anything_else_is_refused_with_one_clear_reason(value, reason):
    assert is_single_image(value)
    with pytest.raises(ImageError, match=reason):
        read_image(value, TARGET)


def test_a_single_image_is_distinguished_from_several():
    tensor = torch.from_numpy(COLOURS)
    for single in ("a.png", b"", Image.new("L", (2, 2)), COLOURS, COLOURS[:, :, 0], tensor):
        assert is_single_image(single)
    for several in (
        [],
        ["a.png"],
        COLOURS[None],
        tensor[None],
        np.array(["a.png", "b.png"]),
        iter(()),
    ):
        assert not is_single_image(several)
