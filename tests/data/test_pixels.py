"""Oracles: the same image saved as a PNG and decoded; numpy's transpose; torchvision."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, to_tensor

from onsight.data.decode import decode
from onsight.data.pixels import encode_image, read_array, read_memory
from onsight.errors import ImageError

COLOURS = np.random.default_rng(0).integers(0, 256, (9, 14, 4), np.uint8)
EVERY = np.arange(256, dtype=np.uint8).reshape(16, 16)
ORIENTATION = 0x0112


def stored(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def decoded(content, background=(10, 200, 30)):
    return decode(content, background) if isinstance(content, bytes) else content


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
@pytest.mark.parametrize("orientation", [1, 6])
def test_an_image_of_every_mode_gives_the_pixels_of_its_png(mode, orientation):
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    if mode == "I;16":
        image = Image.fromarray(COLOURS[:, :, 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(COLOURS).convert("RGBA" if "A" in mode else "RGB").convert(mode)
    data = stored(image, exif=exif)
    opened = Image.open(io.BytesIO(data))
    assert np.array_equal(decoded(encode_image(opened)), decoded(data))


def test_transparency_waits_for_its_background_and_the_rest_does_not():
    palette = Image.fromarray(COLOURS[:, :, :3]).convert("P")
    clear = Image.open(io.BytesIO(stored(palette, transparency=int(np.asarray(palette)[4, 5]))))
    for background in ((10, 200, 30), (0, 0, 0)):
        assert tuple(decoded(encode_image(clear), background)[4, 5]) == background
    assert isinstance(encode_image(palette), np.ndarray)


@pytest.mark.parametrize("mode", ["La", "RGBa", "PA"])
def test_an_image_that_no_png_holds_is_converted(mode):
    plain = Image.fromarray(COLOURS).convert("LA" if mode == "La" else "RGBA")
    if mode == "PA":
        image = plain.convert("RGB").convert("P").convert("PA")
        image.putalpha(plain.getchannel("A"))
    else:
        image = plain.convert(mode)
    same = image.convert(plain.mode)
    assert np.array_equal(decoded(encode_image(image)), decoded(stored(same)))


@pytest.mark.parametrize("channels", [0, 1, 3, 4])
def test_an_array_gives_the_pixels_of_its_png_in_either_layout(channels):
    array = COLOURS[:, :, :channels] if channels else COLOURS[:, :, 0]
    image = Image.fromarray(array[:, :, 0] if channels == 1 else array)
    expected = decoded(stored(image))
    assert np.array_equal(decoded(read_memory(array)), expected)
    assert np.array_equal(decoded(read_memory(torch.from_numpy(array))), expected)
    if channels:
        first = np.ascontiguousarray(array.transpose(2, 0, 1))
        assert np.array_equal(decoded(read_memory(first)), expected)
    for tensor in (pil_to_tensor(image), to_tensor(image), to_tensor(image).double()):
        assert np.array_equal(decoded(read_memory(tensor)), expected)


def test_where_both_layouts_fit_arrays_have_channels_last_and_tensors_first():
    array = COLOURS[:3, :, :3]  # (3, 14, 3)
    assert np.array_equal(read_array(array), array)
    expected = array.transpose(1, 2, 0)
    assert np.array_equal(read_array(torch.from_numpy(np.array(array))), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_level_survives_as_a_float(dtype):
    assert np.array_equal(read_array((EVERY / 255).astype(dtype))[:, :, 0], EVERY)


def test_floats_between_two_levels_become_the_nearer_one():
    levels = np.array([[0.4, 0.6, 99.6, 254.4, 254.9]])
    assert read_array(levels / 255)[0, :, 0].tolist() == [0, 1, 100, 254, 255]


def test_a_tensor_may_need_a_gradient_or_be_bfloat16():
    tensor = torch.ones(1, 2, 3, requires_grad=True)
    assert (read_array(tensor) == 255).all()
    assert (read_array(tensor.bfloat16()) == 255).all()
    assert read_array(tensor).shape == (2, 3, 1)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (EVERY.astype(np.float32), "floats from 0 to 255, but they must be from 0 to 1: divide"),
        (EVERY / 255 - 0.5, "floats from -0.5 to 0.5"),
        (np.where(EVERY == 7, np.nan, 0.5), "NaN"),
        (np.where(EVERY == 7, np.inf, 0.5), "infinite"),
        (EVERY.astype(np.int64), r"an array of int64 \(16, 16\) is not an image: pass a path"),
        (EVERY.astype(np.uint16), "an array of uint16"),
        (EVERY > 9, "an array of bool"),
        (EVERY.astype(np.complex64), "an array of complex64"),
        (np.zeros((5, 6, 2), np.uint8), r"an array of uint8 \(5, 6, 2\)"),
        (np.zeros(9, np.uint8), r"an array of uint8 \(9,\)"),
        (np.zeros((0, 4, 3), np.uint8), "has no pixels"),
        (torch.zeros(2, 5, 6), r"an array of float32 \(2, 5, 6\)"),
        (None, "a NoneType is not an image"),
        ([[1]], "a list is not an image"),
    ],
)
def test_anything_else_is_refused_with_one_clear_reason(value, reason):
    with pytest.raises(ImageError, match=reason):
        read_memory(value)
