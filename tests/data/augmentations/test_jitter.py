"""Oracle: torchvision, one image at a time."""

import torch
import torchvision.transforms.v2.functional as reference

from onsight.data.augmentation_ops import Jitter, jitter_colour
from onsight.randomness import uniform


def test_jitter_equals_torchvision():
    images = torch.randint(0, 256, (4, 9, 12, 3)).double()
    ones = torch.ones(4, dtype=torch.float64)
    factor = torch.tensor([0.5, 0.9, 1.2, 1.6], dtype=torch.float64)
    planes = images.permute(0, 3, 1, 2) / 255
    cases = {
        reference.adjust_brightness: (factor, ones, ones),
        reference.adjust_saturation: (ones, ones, factor),
    }
    for adjust, factors in cases.items():
        jittered = jitter_colour(images, *factors) / 255
        for i in range(4):
            expected = adjust(planes[i], float(factor[i])).permute(1, 2, 0)
            # torchvision's weight of red is 0.2989, ours 0.299
            assert torch.allclose(jittered[i], expected, atol=1e-4)


def test_contrast_scales_about_the_mean_grey():
    images = torch.full((1, 2, 2, 1), 100.0)
    images[0, 0] = 120.0
    ones = torch.ones(1)
    jittered = jitter_colour(images, ones, torch.tensor([0.5]), ones)
    assert jittered[0, :, 0, 0].tolist() == [115.0, 105.0]


def test_factors_lie_evenly_about_one():
    jitter, images = Jitter(0.4), torch.full((2000, 1, 1, 1), 100.0)
    numbers = uniform(0, 0, torch.arange(2000), jitter.columns).unbind(1)
    factors = jitter.apply(images, dict(zip(jitter.columns, numbers, strict=True))) / 100
    assert 0.98 < factors.mean() < 1.02
    assert 0.6 <= factors.min() < 0.61
    assert 1.39 < factors.max() <= 1.4
