"""Shrinking, compared with other precisions, orders of summation, exact weights and torch."""

from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from onsight.data import normalization
from onsight.data.loader import Images
from onsight.data.normalization import resize_batch, shrink_images
from onsight.data.shrink import filter_weights, shrink

SIZES = [
    ((128, 128), (64, 64)),
    ((224, 224), (64, 64)),
    ((160, 160), (96, 96)),
    ((500, 500), (64, 64)),
    ((300, 200), (97, 64)),
    ((37, 24), (37, 9)),
    ((37, 24), (9, 24)),
    ((500, 33), (1, 1)),
]
SIDES = [(128, 64), (224, 64), (160, 96), (500, 64), (300, 97), (192, 6), (33, 1), (500, 1)]
sized = pytest.mark.parametrize(("before", "after"), SIZES)


def draw_images(before, count=2, channels=3):
    """Return uint8 (count, *before, channels), in which every other image is only 0 and 255."""
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, *before, channels), dtype=torch.uint8, generator=draw)
    images[1::2] = (images[1::2] > 127) * 255
    return images


def shrink_rows(pixels, weights, order, dtype):
    """Add up pixels (H, ...) one row after the other in an order: (h, ...)."""
    sums = np.zeros((len(weights), *pixels.shape[1:]), dtype)
    for row in order:
        sums += weights[:, row].reshape(-1, *[1] * (pixels.ndim - 1)).astype(dtype) * pixels[row]
    return np.rint(sums)


def shrink_in_order(image, weights, dtype, permuted):
    """Shrink (H, W, C) like `shrink`, in another precision or order of summation."""
    for axis, matrix in enumerate(weights):
        if matrix is not None:
            order = np.arange(image.shape[axis])
            if permuted:
                np.random.default_rng(2).shuffle(order)
            pixels = np.moveaxis(image, axis, 0).astype(dtype)
            image = np.moveaxis(shrink_rows(pixels, matrix.numpy(), order, dtype), 0, axis)
    return image


@pytest.mark.parametrize(("dtype", "permuted"), [("f4", False), ("f4", True), ("f8", False)])
@sized
def test_the_bits_depend_on_neither_precision_nor_order(before, after, dtype, permuted):
    images = draw_images(before)
    rows, columns = filter_weights(before, after)
    weights = rows, None if columns is None else columns.T
    found = shrink(images, after)
    assert found.dtype == torch.float32
    assert found.shape == (2, *after, 3)
    for image, small in zip(images.numpy(), found.numpy(), strict=True):
        assert np.array_equal(shrink_in_order(image, weights, dtype, permuted), small)


@sized
def test_the_bits_are_the_same_under_autocast(before, after):
    images = draw_images(before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = shrink(images, after)
    assert torch.equal(under_autocast, shrink(images, after))


@pytest.mark.parametrize(("before", "after"), SIDES)
def test_weights_are_triangles_in_1024ths_that_sum_to_one(before, after):
    weights, _ = filter_weights((before, 1), (after, 1))
    assert torch.equal(weights, weights.flip(0, 1))  # mirrored images shrink to mirrored images
    for row, found in enumerate((weights.double() * 1024).tolist()):
        assert sum(found) == 1024
        assert all(weight >= 0 and weight.is_integer() for weight in found)
        # Where, and how high, in units of which each pixel is 2 * after wide: whole numbers.
        centre = before * (2 * row + 1)
        heights = [
            max(0, 2 * before - abs(after * (2 * pixel + 1) - centre)) for pixel in range(before)
        ]
        exact = [Fraction(1024 * end, sum(heights)) for end in accumulate(heights)]
        assert [round(end) for end in exact] == list(accumulate(found))


@pytest.mark.parametrize(("before", "after"), SIDES)
def test_one_product_is_within_about_a_grey_level_of_torchs_antialiasing(before, after):
    images = draw_images((before, 40), count=8)
    planes = images.permute(0, 3, 1, 2).double()
    expected = F.interpolate(planes, (after, 40), mode="bilinear", antialias=True)
    # Sums of weights are off by up to 1/2048, which shows in strongly shrunk noise.
    steps = planes.diff(dim=2).abs().sum(dim=2, keepdim=True)
    limit = 0.5 + steps / 2048 if before > 8 * after else torch.tensor(1.1)
    small = shrink(images, (after, 40))
    assert ((small.permute(0, 3, 1, 2) - expected).abs() <= limit).all()
    turned = shrink(images.transpose(1, 2), (40, after))
    assert torch.equal(turned.transpose(1, 2), small)


@sized
def test_a_constant_image_stays_constant_and_none_leaves_the_range(before, after):
    greys = torch.tensor([0, 1, 127, 254, 255], dtype=torch.uint8).view(-1, 1, 1, 1)
    assert torch.equal(shrink(greys.expand(-1, *before, 1), after), greys.expand(-1, *after, 1))
    small = shrink(draw_images(before), after)
    assert torch.equal(small, small.to(torch.uint8))  # whole numbers from 0 to 255


def test_images_of_the_size_stay_as_they_are():
    images = draw_images((20, 30))
    assert torch.equal(shrink(images, (20, 30)), images)


def test_no_images_are_no_images():
    assert shrink(draw_images((20, 30), count=0), (10, 10)).shape == (0, 10, 10, 3)


def test_larger_is_refused():
    with pytest.raises(ValueError, match="20 pixels cannot shrink to 21"):
        shrink(draw_images((20, 20)), (10, 21))


def test_what_is_too_small_is_enlarged_after_shrinking():
    images = draw_images((20, 30))
    small = shrink(images, (20, 11)).permute(0, 3, 1, 2)
    expected = F.interpolate(small, (33, 11), mode="bilinear", align_corners=False)
    assert torch.equal(resize_batch(images, (33, 11)), expected.permute(0, 2, 3, 1))


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("side", [16, 15, 7])
def test_images_shrunk_once_are_those_of_every_batch(side, is_mapped, tmp_path, monkeypatch):
    monkeypatch.setattr(normalization, "images_per_chunk", lambda pixels: 20)
    pixels = torch.randint(0, 256, (50, 32 * 32 * 3), dtype=torch.uint8)
    labels = torch.zeros(60, dtype=torch.long)
    images = Images(pixels, torch.arange(60) % 50, labels, (32, 32, 3))
    ids = torch.tensor([3, 55, 0])
    folder = tmp_path if is_mapped else None
    shrunk = shrink_images(images, (side, side), folder).gather(ids).images
    expected = resize_batch(images.gather(ids).images, (side, side))
    assert shrunk.dtype == torch.uint8
    assert torch.equal(shrunk.float(), expected)
