"""Flips, shifts and rotations over many images: how often, how far, and which way."""

import math

import pytest
import torch

from onsight.data.augmentation_ops import DOWN, RIGHT, Geometry
from onsight.randomness import uniform


def drawn(geometry, count):
    numbers = uniform(0, 0, torch.arange(count), geometry.columns).unbind(1)
    return dict(zip(geometry.columns, numbers, strict=True))


def test_flips_about_half_and_shifts_over_the_whole_range():
    images = torch.arange(20, dtype=torch.uint8).view(1, 1, 20, 1).expand(2000, 20, 20, 1)
    moving = Geometry(flip=True, translate=0.1)
    moved = moving.apply(images, drawn(moving, 2000))
    mirrored = moved[:, 0, 10, 0] < moved[:, 0, 9, 0]
    assert 0.45 < mirrored.float().mean() < 0.55
    middles = moved[~mirrored][:, 0, 10, 0].unique().tolist()
    assert middles == [8, 9, 10, 11, 12]


@pytest.mark.parametrize("fields", [{"translate": 0.1}, {"crop_area": 0.5}, {"rotate_degrees": 5}])
def test_nothing_is_mirrored_unless_asked(fields):
    images = torch.arange(20, dtype=torch.uint8).view(1, 1, 20, 1).expand(200, 20, 20, 1)
    moving = Geometry(**fields)
    moved = moving.apply(images, drawn(moving, 200))
    assert (moved[:, 10, 12, 0] > moved[:, 10, 8, 0]).all()


@pytest.mark.parametrize(("column", "place"), [(DOWN, 0), (RIGHT, 1)])
def test_resampled_images_are_shifted_by_the_same_share(column, place):
    ramp = torch.arange(41.0).view(41, 1, 1) if place == 0 else torch.arange(41.0).view(1, 41, 1)
    images = ramp.expand(100, 41, 41, 1)
    turning = Geometry(translate=0.2, rotate_degrees=1e-6)  # resamples, and hardly turns
    numbers = drawn(turning, 100)
    middles = turning.apply(images, numbers)[:, 20, 20, 0]
    expected = 20 + 0.2 * (2 * numbers[column] - 1) * 41
    assert torch.allclose(middles, expected, atol=1e-2)
    assert expected.min() < 13
    assert expected.max() > 27


def test_rotations_go_both_ways_and_no_further_than_asked():
    images = torch.zeros(400, 41, 41, 1)
    images[:, 20] = 255
    turning = Geometry(rotate_degrees=30)
    turned = turning.apply(images, drawn(turning, 400))[:, :, :, 0]
    rise = turned[:, :, 10].argmax(1) - turned[:, :, 30].argmax(1)
    assert 0.4 < (rise > 0).float().mean() < 0.6
    furthest = 20 * math.tan(math.radians(30))
    assert furthest - 1.5 < rise.max() <= furthest + 1.5
    assert -furthest - 1.5 <= rise.min() < 1.5 - furthest
