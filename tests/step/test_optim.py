import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from onsight.config import make_config
from onsight.errors import ConfigError, ModelError
from onsight.step.optim import (
    choose_learning_rate,
    learning_rate_factor,
    make_optimizer,
    set_learning_rate,
)


def make_model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lamb", "muon", "rmsprop", "nadamw"])
def test_every_optimizer_lowers_a_loss(name):
    torch.manual_seed(0)
    model = make_model()
    optimizer = make_optimizer(model, name, 0.01, 0.01, 0.9)
    inputs, labels = torch.randn(16, 3, 4, 4), torch.arange(16) % 2
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_an_unknown_optimizer_gets_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean adamw"):
        make_optimizer(make_model(), "adamww", 0.1, 0, 0.9)


def test_biases_and_norms_are_not_decayed():
    optimizer = make_optimizer(make_model(), "nesterov", 0.1, 0.05, 0.9)
    decays = {g["weight_decay"]: [p.ndim for p in g["params"]] for g in optimizer.param_groups}
    assert decays == {0.05: [4, 2], 0.0: [1, 1, 1, 1]}
    assert all(group["nesterov"] for group in optimizer.param_groups)


def test_frozen_parameters_are_left_out():
    model = make_model()
    model[0].requires_grad_(False)
    optimizer = make_optimizer(model, "adamw", 0.1, 0.05, 0.9)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 4


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb"])
def test_a_network_without_trainable_parameters_is_refused(name):
    with pytest.raises(ModelError, match="it has no trainable parameters"):
        make_optimizer(make_model().requires_grad_(False), name, 0.1, 0.1, 0.9)


def factors(schedule, steps=1000, warmup=0):
    return [learning_rate_factor(schedule, step, steps, warmup) for step in range(steps)]


def test_one_cycle_rises_for_a_quarter_and_falls_to_almost_zero():
    curve = factors("one-cycle")
    peak = curve.index(max(curve))
    assert abs(peak - 250) <= 1
    assert max(curve) == pytest.approx(1.0, abs=1e-4)
    assert curve[0] < 0.05
    assert curve[-1] < 0.001
    assert all(a < b for a, b in pairwise(curve[: peak + 1]))
    assert all(a > b for a, b in pairwise(curve[peak:]))


def test_one_cycle_takes_the_middle_of_each_step():
    rising, *falling = factors("one-cycle", 4)  # at 1/8, and at 1/6, 1/2 and 5/6 of the way down
    assert rising == pytest.approx((0.04 + 1) / 2)
    for factor, done in zip(falling, (1 / 6, 1 / 2, 5 / 6), strict=True):
        expected = 1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi * done)) / 2
        assert factor == pytest.approx(expected)


def test_cosine_equals_torchs_scheduler():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    for factor in factors("cosine", 200):
        assert factor == pytest.approx(scheduler.get_last_lr()[0], abs=1e-9)
        optimizer.step()
        scheduler.step()


def test_warmup_rises_in_equal_steps_before_the_schedule_begins():
    curve = factors("constant", 100, warmup=9)
    assert curve[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert set(curve[10:]) == {1.0}
    curve = factors("cosine", 100, warmup=10)
    assert curve[10] == 1.0
    assert curve[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 89 / 90)))


def test_linear_falls_in_equal_steps_and_the_step_after_the_last_would_be_zero():
    curve = factors("linear", 50)
    assert curve[0] == 1.0
    assert [a - b for a, b in pairwise([*curve, 0.0])] == pytest.approx([1 / 50] * 50)
    curve = factors("linear", 50, warmup=9)
    assert curve[:10] == pytest.approx([0.1 * n for n in range(1, 11)])
    assert curve[-1] == pytest.approx(1 / 41)


def test_learning_rate_respects_a_groups_own_scale():
    optimizer = torch.optim.SGD(
        [
            {"params": [nn.Parameter(torch.zeros(1))], "lr_scale": 0.1},
            {"params": [nn.Parameter(torch.zeros(1))]},
        ],
        lr=1.0,
    )
    set_learning_rate(optimizer, 0.5, 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.25]


@pytest.mark.parametrize(("model", "rate"), [("compact", 0.01), ("sprint", 0.01), ("lenet", 1e-3)])
def test_nets_from_scratch_have_their_own_usual_rate(model, rate):
    assert choose_learning_rate(make_config({"model": model})).value == rate
    assert choose_learning_rate(make_config({"model": model, "learning_rate": 0.2})).value == 0.2
