"""mixup and cutmix: the law of the shares, and targets that follow the pixels."""

import pytest
import torch
from torch import Tensor

from onsight.data import augmentation_ops as mix_module
from onsight.data.augmentation_ops import MIX_X, MIX_Y, TRIES, Mix, beta
from onsight.randomness import uniform


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0])
def test_beta_has_the_moments_of_its_law(alpha):
    numbers = uniform(0, 0, torch.arange(40_000), range(2 * TRIES))
    drawn = beta(numbers, alpha).double()
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.var() - 1 / (4 * (2 * alpha + 1))) < 0.004
    assert drawn.min() >= 0
    assert drawn.max() <= 1


@pytest.mark.parametrize("has_float64", [True, False])
def test_beta_is_computed_in_float64_on_a_device_that_has_it(monkeypatch, has_float64):
    numbers = uniform(0, 0, torch.arange(100), range(2 * TRIES))
    expected, copies, cpu = beta(numbers, 0.3), [], Tensor.cpu
    monkeypatch.setattr(mix_module, "has_float64", lambda device: has_float64)
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: copies.append(tensor.dtype) or cpu(tensor))
    assert torch.equal(beta(numbers, 0.3), expected)
    assert copies == ([] if has_float64 else [torch.float32])


@pytest.mark.parametrize("mix", [Mix(mixup=0.5), Mix(cutmix=1.0), Mix(0.5, 1.0)], ids=repr)
def test_mixed_targets_are_the_shares_of_the_pixels(mix):
    inputs = torch.zeros(5, 1, 10, 10)
    inputs[1::2] = 1  # black and white in turn, so that every partner is the other
    labels = torch.tensor([0, 1, 0, 1, 0])
    drawn = uniform(3, 1, torch.arange(5), mix.columns).unbind(1)
    mixed, targets = mix.apply(inputs, labels, dict(zip(mix.columns, drawn, strict=True)), 2)
    white = mixed.double().mean(dim=(1, 2, 3))
    assert mixed.shape == (4, 1, 10, 10)  # the last image is only a partner
    assert torch.allclose(targets[:, 1].double(), white, atol=1e-6)
    assert torch.allclose(targets.sum(1), torch.ones(4))
    assert not torch.allclose(white, white.round())


def drawn(mix, count):
    numbers = uniform(3, 1, torch.arange(count), mix.columns).unbind(1)
    return dict(zip(mix.columns, numbers, strict=True))


def test_a_cutmix_box_has_the_area_that_was_drawn():
    mix, count = Mix(cutmix=1.0), 200
    numbers = drawn(mix, count)
    inputs = (torch.arange(count) % 2).float().view(-1, 1, 1, 1).expand(count, 1, 100, 100)
    mixed, _ = mix.apply(inputs, torch.zeros(count, dtype=torch.int64), numbers, 2)
    tries = torch.stack([numbers[column] for column in mix.columns[3:]], dim=1)
    sides = (1 - beta(tries, 1.0).double()[:-1]).sqrt()  # shares of height and width
    for number in range(count - 1):
        expected = 1.0
        for centre in (numbers[MIX_Y][number].item(), numbers[MIX_X][number].item()):
            half = sides[number].item() / 2
            expected *= min(1, centre + half) - max(0, centre - half)  # what lies inside
        pasted = (mixed[number] != inputs[number]).double().mean()
        assert abs(pasted - expected) < 0.03


def test_with_both_about_half_are_cut():
    mix, count = Mix(mixup=0.5, cutmix=1.0), 400
    inputs = (torch.arange(count) % 2).float().view(-1, 1, 1, 1).expand(count, 1, 8, 8)
    mixed, _ = mix.apply(inputs, torch.zeros(count, dtype=torch.int64), drawn(mix, count), 2)
    blended = ((mixed > 0) & (mixed < 1)).flatten(1).any(1)
    assert 0.4 < blended.float().mean() < 0.6
