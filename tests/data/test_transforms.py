"""Oracles: loops over single pictures with numpy and torchvision."""

import math

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as reference

from onsight.data import transforms
from onsight.data.augment import _TRIES, Augmentation, beta
from onsight.data.loader import Batch
from onsight.data.normalization import Normalization
from onsight.randomness import uniform

GENERATOR = torch.Generator().manual_seed(0)


def pictures(count=6, height=9, width=12, channels=3):
    shape = (count, height, width, channels)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=GENERATOR)


def test_shift_and_flip_equals_a_loop_with_numpy_padding():
    images = pictures()
    down = torch.tensor([0, 1, -2, 3, -3, 2])
    right = torch.tensor([0, -1, 2, 0, 3, -3])
    mirrored = torch.tensor([False, True, False, True, True, False])
    moved = transforms.shift_and_flip(images, down, right, mirrored)
    for i, picture in enumerate(images.numpy()):
        turned = picture[:, ::-1] if mirrored[i] else picture
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
    images = pictures().double()
    assert torch.allclose(identity_warp(images), images, atol=1e-9)


def test_warp_mirrors():
    images = pictures().double()
    mirrored = torch.ones(len(images), dtype=torch.bool)
    assert torch.allclose(identity_warp(images, mirrored=mirrored), images.flip(2), atol=1e-9)


def test_warp_crops_as_torchvision_resizes_a_crop():
    images = pictures(height=16, width=16).double()
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


def test_jitter_equals_torchvision():
    images = pictures(4).double()
    ones = torch.ones(4, dtype=torch.float64)
    factor = torch.tensor([0.5, 0.9, 1.2, 1.6], dtype=torch.float64)
    planes = images.permute(0, 3, 1, 2) / 255
    cases = {
        reference.adjust_brightness: (factor, ones, ones),
        reference.adjust_saturation: (ones, ones, factor),
    }
    for adjust, factors in cases.items():
        jittered = transforms.jitter_colour(images, *factors) / 255
        for i in range(4):
            expected = adjust(planes[i], float(factor[i])).permute(1, 2, 0)
            # torchvision's weight of red is 0.2989, ours 0.299.
            assert torch.allclose(jittered[i], expected, atol=1e-4)


def test_contrast_scales_about_the_mean_grey():
    images = torch.full((1, 2, 2, 1), 100.0)
    images[0, 0] = 120.0
    ones = torch.ones(1)
    jittered = transforms.jitter_colour(images, ones, torch.tensor([0.5]), ones)
    assert jittered[0, :, 0, 0].tolist() == [115.0, 105.0]


@pytest.mark.parametrize("side", [8, 80])
def test_mirrored_pictures_are_mirrored_and_no_others(side):
    images = pictures(6, side, side + 1)
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


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_beta_has_the_moments_of_its_law(alpha):
    numbers = uniform(0, 0, torch.arange(40_000), range(2 * _TRIES))
    drawn = beta(numbers, alpha).double()
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.004
    assert drawn.min() >= 0
    assert drawn.max() <= 1


ALL = Augmentation(True, 0.1, 0.5, 20, 0.3, 0.3, 0.4, 0.4)
EACH = [
    Augmentation(flip=True),
    Augmentation(translate=0.2),
    Augmentation(crop_area=0.3),
    Augmentation(rotate_degrees=30),
    Augmentation(jitter=0.4),
    Augmentation(cutout=0.4),
]
NORMALIZATION = Normalization((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))


def batch_of(images):
    count = len(images)
    labels = torch.arange(count) % 3
    return Batch(images, labels, torch.arange(count) + 50, labels)


@pytest.mark.parametrize("augmentation", EACH, ids=repr)
def test_each_change_depends_on_the_picture_alone_and_changes_with_the_epoch(augmentation):
    batch = batch_of(pictures(12, 12, 12))

    def augmented(part, epoch):
        numbers = augmentation.draw(7, epoch, part.ids)
        return augmentation.apply(part, numbers, NORMALIZATION, 3)[0]

    whole = augmented(batch, 1)
    others = batch_of(pictures(12, 12, 12))._replace(ids=torch.arange(12) + 80)
    is_even = torch.arange(12) % 2 == 0
    sides = [
        torch.where(is_even.view(-1, *[1] * (t.ndim - 1)), t, o)
        for t, o in zip(batch, others, strict=True)
    ]
    assert torch.equal(augmented(Batch(*sides), 1)[is_even], whole[is_even])
    parts = [augmented(Batch(*(t[i : i + 1] for t in batch)), 1) for i in range(12)]
    assert torch.allclose(whole, torch.cat(parts), atol=1e-3)  # 0.05 grey values: rounding
    assert not torch.equal(whole, augmented(batch, 2))
    assert torch.equal(whole, augmented(batch, 1))


def test_nothing_asked_is_plain_normalization():
    batch = batch_of(pictures())
    none = Augmentation()
    inputs, targets = none.apply(batch, none.draw(0, 0, batch.ids), NORMALIZATION, 3)
    expected = (
        batch.images.permute(0, 3, 1, 2) / 255.0 - torch.tensor(NORMALIZATION.mean).view(1, 3, 1, 1)
    ) / torch.tensor(NORMALIZATION.std).view(1, 3, 1, 1)
    assert torch.equal(inputs, expected)
    assert torch.equal(targets, batch.labels)


def test_mixed_targets_are_the_shares_of_the_pixels():
    images = torch.zeros(5, 10, 10, 1, dtype=torch.uint8)
    images[1::2] = 255  # black and white in turn, so that every partner is the other
    labels = torch.tensor([0, 1, 0, 1, 0])
    batch = Batch(images, labels, torch.arange(5), labels[:4])
    plain = Normalization((0.0,), (1.0,))
    for augmentation in (Augmentation(mixup=0.5), Augmentation(cutmix=1.0)):
        numbers = augmentation.draw(3, 1, batch.ids)
        inputs, targets = augmentation.apply(batch, numbers, plain, 2)
        white = inputs.double().mean(dim=(1, 2, 3))
        assert torch.allclose(targets[:, 1].double(), white, atol=1e-6)
        assert torch.allclose(targets.sum(1), torch.ones(4))
        assert not torch.allclose(white, white.round())


def test_everything_together_keeps_shape_and_stays_finite():
    batch = batch_of(pictures(8, 20, 14))
    inputs, targets = ALL.apply(batch, ALL.draw(0, 0, batch.ids), NORMALIZATION, 3)
    assert inputs.shape == (7, 3, 20, 14)  # the last picture is only a partner
    assert targets.shape == (7, 3)
    assert inputs.isfinite().all()


def test_flips_about_half_and_shifts_over_the_whole_range():
    ids = torch.arange(2000)
    images = torch.arange(20, dtype=torch.uint8).view(1, 1, 20, 1).expand(2000, 20, 20, 1)
    moving = Augmentation(flip=True, translate=0.1)
    moved = moving._move(images, moving.draw(0, 0, ids))
    mirrored = moved[:, 0, 10, 0] < moved[:, 0, 9, 0]
    assert 0.45 < mirrored.float().mean() < 0.55
    middles = moved[~mirrored][:, 0, 10, 0].unique().tolist()
    assert middles == [8, 9, 10, 11, 12]
