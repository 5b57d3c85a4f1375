"""Flips and shifts over many pictures: how often, and how far."""

import torch

from onsight.data.augmentations.geometry import Geometry
from onsight.randomness import uniform


def test_flips_about_half_and_shifts_over_the_whole_range():
    ids = torch.arange(2000)
    images = torch.arange(20, dtype=torch.uint8).view(1, 1, 20, 1).expand(2000, 20, 20, 1)
    moving = Geometry(flip=True, translate=0.1)
    drawn = uniform(0, 0, ids, moving.columns).unbind(1)
    moved = moving.apply(images, dict(zip(moving.columns, drawn, strict=True)))
    mirrored = moved[:, 0, 10, 0] < moved[:, 0, 9, 0]
    assert 0.45 < mirrored.float().mean() < 0.55
    middles = moved[~mirrored][:, 0, 10, 0].unique().tolist()
    assert middles == [8, 9, 10, 11, 12]
