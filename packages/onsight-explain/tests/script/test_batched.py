"""Random transforms of batches, against torchvision's of single images."""

import pytest
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2

from onsight_explain.script.augment_batches import batch_version
from onsight_explain.script.batched import (
    color_jitter,
    gaussian_blur,
    random_affine,
    random_crop,
    random_flip,
    random_resized_crop,
)

SIDE = 24


@pytest.fixture
def images():
    torch.manual_seed(0)
    small = torch.rand(8, 3, 6, 6)
    smooth = torch.nn.functional.interpolate(small, SIDE, mode="bicubic").clamp(0, 1)
    return (smooth * 255).to(torch.uint8)


STEPS = [
    (ops, name, arguments)
    for ops in (v1, v2)
    for name, arguments in [
        ("RandomHorizontalFlip", {}),
        ("RandomVerticalFlip", {}),
        ("RandomCrop", {"size": SIDE, "padding": 3}),
        ("RandomCrop", {"size": SIDE, "padding": [1, 2], "padding_mode": "reflect"}),
        ("RandomResizedCrop", {"size": SIDE}),
        ("RandomAffine", {"degrees": 15, "translate": (0.1, 0.1), "scale": (0.9, 1.1)}),
        ("RandomRotation", {"degrees": 20}),
        ("ColorJitter", {"brightness": 0.3, "saturation": 0.4}),
        ("GaussianBlur", {"kernel_size": 3}),
        ("RandomGrayscale", {"p": 0.5}),
        ("RandomErasing", {}),
    ]
]


@pytest.mark.parametrize(("ops", "name", "arguments"), STEPS)
@pytest.mark.parametrize("is_float", [False, True])
def test_every_image_is_transformed_by_itself(images, ops, name, arguments, is_float):
    step = batch_version(getattr(ops, name)(**arguments))
    one = images[:1].expand(64, -1, -1, -1)
    one = one.float() / 255 if is_float else one
    out = step(one)
    assert (out.dtype, out.shape) == (one.dtype, one.shape)
    assert 0 <= out.min() <= out.max() <= (1.0001 if is_float else 255)
    assert len(out.unique(dim=0)) > 1  # 64 copies of one image became different ones


@pytest.mark.parametrize(
    "step",
    [
        v1.RandomCrop(8, fill=3),
        v1.RandomCrop(8, padding_mode="symmetric"),
        v1.RandomAffine(3, shear=4),
        v1.RandomRotation(3, expand=True),
        v2.ColorJitter(hue=0.1),
        v2.RandomErasing(value=7),
        v1.RandAugment(),
    ],
)
def test_what_it_would_do_otherwise_is_left_to_torchvision(step):
    assert batch_version(step) is None


def test_windows_of_a_crop_are_those_of_the_padded_image(images):
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    windows = {
        padded[0, :, top : top + SIDE, left : left + SIDE].numpy().tobytes()
        for top in range(5)
        for left in range(5)
    }
    many = images[:1].expand(300, -1, -1, -1)
    out = random_crop(many, (SIDE, SIDE), (2, 2, 2, 2), "constant")
    assert {one.numpy().tobytes() for one in out} == windows


def test_numbers_that_leave_no_choice_give_what_torchvision_gives(images):
    functional = v2.functional
    assert torch.equal(random_flip(images, 1.0, -1), functional.horizontal_flip(images))
    assert torch.equal(random_flip(images, 0.0, -2), images)
    whole = random_resized_crop(images, (SIDE, SIDE), (1, 1), (1, 1))
    assert torch.equal(whole, images)
    small = images.float() / 255
    jittered = color_jitter(small, (0.8, 0.8), (1.2, 1.2), (0.7, 0.7))
    expected = functional.adjust_brightness(small, 0.8)
    expected = functional.adjust_saturation(functional.adjust_contrast(expected, 1.2), 0.7)
    torch.testing.assert_close(jittered, expected, atol=2e-3, rtol=0)
    blurred = gaussian_blur(small, (5, 3), (0.9, 0.9))
    torch.testing.assert_close(
        blurred, functional.gaussian_blur(small, [5, 3], [0.9, 0.9]), atol=1e-5, rtol=0
    )


def test_an_affine_with_fixed_numbers_is_torchvisions(images):
    small = images.float() / 255
    turned = random_affine(small, (20, 20), (0, 0), (1.1, 1.1), "bilinear")
    expected = v2.functional.affine(small, 20, [0, 0], 1.1, [0, 0], v2.InterpolationMode.BILINEAR)
    difference = (turned - expected).abs()
    other = v2.functional.affine(small, -20, [0, 0], 1.1, [0, 0], v2.InterpolationMode.BILINEAR)
    assert min(difference.max(), (turned - other).abs().max()) < 1e-3
