"""Oracles: loops over single images with numpy and torchvision."""

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as reference

from onsight.data import transforms

GENERATOR = torch.Generator().manual_seed(0)


def make_images(count=6, height=9, width=12, channels=3):
    shape = (count, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=GENERATOR)


def test_shift_and_flip_equals_a_loop_with_numpy_padding():
    images = make_images()
    down = torch.tensor([0, 1, -2, 3, -3, 2])
    right = torch.tensor([0, -1, 2, 0, 3, -3])
    mirrored = torch.tensor([False, True, False, True, True, False])
    moved = transforms.shift_and_flip(images, down, right, mirrored)
    for i, image in enumerate(images.numpy()):
        turned = image[:, ::-1] if mirrored[i] else image
        padded = np.pad(turned, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        y, x = 4 - int(down[i]), 4 - int(right[i])
        assert np.array_equal(moved[i].numpy(), padded[y : y + 9, x : x + 12])


def identity_warp(images, **changed):
    """A warp in float64, where nothing is left of rounding."""
    ones = torch.ones(len(images), dtype=torch.float64)
    zeros = torch.zeros_like(ones)
    numbers = {
        "height_share": ones,
        "width_share": ones,
        "centre_y": zeros,
        "centre_x": zeros,
        "radians": zeros,
        "mirrored": torch.zeros(len(images), dtype=torch.bool),
        "size": (images.shape[1], images.shape[2]),
    }
    return transforms.warp(images, **{**numbers, **changed})


def test_warp_without_change_is_the_identity():
    images = make_images().double()
    assert torch.allclose(identity_warp(images), images, atol=1e-9)


def test_warp_mirrors():
    images = make_images().double()
    mirrored = torch.ones(len(images), dtype=torch.bool)
    assert torch.allclose(identity_warp(images, mirrored=mirrored), images.flip(2), atol=1e-9)


def test_warp_crops_as_torchvision_resizes_a_crop():
    images = make_images(height=16, width=16).double()
    half = torch.full((len(images),), 0.5, dtype=torch.float64)
    cropped = identity_warp(images, height_share=half, width_share=half)
    expected = reference.resized_crop(
        images.permute(0, 3, 1, 2), 4, 4, 8, 8, [16, 16], antialias=False
    )
    inner = (slice(None), slice(1, -1), slice(1, -1))  # edges: the window's outside is visible
    assert torch.allclose(cropped[inner], expected.permute(0, 2, 3, 1)[inner], atol=1e-9)


def test_warp_rotates_as_torchvision_does():
    images = torch.rand(3, 15, 21, 1, generator=GENERATOR, dtype=torch.float64)
    angle = torch.full((3,), math.radians(20.0), dtype=torch.float64)
    turned = identity_warp(images, radians=angle)
    expected = reference.rotate(
        images.permute(0, 3, 1, 2), 20.0, reference.InterpolationMode.BILINEAR
    ).permute(0, 2, 3, 1)
    middle = (slice(None), slice(5, 10), slice(6, 15))
    assert torch.allclose(turned[middle], expected[middle], atol=1e-9)


@pytest.mark.parametrize("side", [8, 80])
def test_mirrored_images_are_mirrored_and_no_others(side):
    images = make_images(6, side, side + 1)
    before = images.clone()
    mirrored = torch.tensor([True, False, True, True, False, False])
    result = transforms.mirror(images, mirrored)
    for number, turned in enumerate(mirrored.tolist()):
        expected = before[number].flip(1) if turned else before[number]
        assert torch.equal(result[number], expected)
    assert torch.equal(images, before)


def test_box_covers_its_share_around_its_centre():
    boxes = transforms.box(torch.tensor([0.5]), torch.tensor([0.0]), torch.tensor([0.5]), 8, 8)
    assert boxes.shape == (1, 1, 8, 8)
    assert boxes[0, 0].nonzero().amin(0).tolist() == [2, 0]
    assert boxes[0, 0].nonzero().amax(0).tolist() == [5, 1]
