"""Oracle: scipy's bounded minimisation of the loss; planted temperatures."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize_scalar

from onsight.evaluation.temperature import choose_temperature, fit_temperature


def draw(count, planted, classes=5, seed=0):
    """Logits whose probabilities are right once they are divided by the planted temperature."""
    generator = torch.Generator().manual_seed(seed)
    right = torch.randn(count, classes, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(right.softmax(1), 1, generator=generator).squeeze(1)
    return right * planted, labels


def loss(logits, labels, temperature):
    rows = logits.numpy() / temperature
    peak = rows.max(1)
    total = peak + np.log(np.exp(rows - peak[:, None]).sum(1))
    return float((total - rows[np.arange(len(rows)), labels.numpy()]).mean())


@pytest.mark.parametrize("planted", [0.2, 0.5, 1.0, 1.7, 6.0])
@pytest.mark.parametrize("count", [60, 3000])
def test_fitted_temperature_is_scipys(planted, count):
    logits, labels = draw(count, planted)
    found = minimize_scalar(
        lambda log: loss(logits, labels, np.exp(log)),
        bounds=(np.log(0.1), np.log(10)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert fit_temperature(logits.float(), labels) == pytest.approx(np.exp(found.x), rel=1e-4)


def test_a_planted_temperature_is_found_and_lowers_the_loss_of_new_images():
    logits, labels = draw(4000, 2.5)
    choice = choose_temperature(logits, labels)
    assert choice.value == pytest.approx(2.5, rel=0.08)
    assert choice.reason == "fitted on 4,000 validation images"
    others, truth = draw(4000, 2.5, seed=1)
    assert F.cross_entropy(others / choice.value, truth) < F.cross_entropy(others, truth) - 0.05


def test_the_bounds_are_met_where_the_minimum_lies_outside():
    logits, labels = draw(500, 40.0)
    assert fit_temperature(logits, labels) == pytest.approx(10.0, rel=1e-6)
    assert choose_temperature(logits, labels).value == 1
    assert fit_temperature(-logits, labels) == pytest.approx(10.0, rel=1e-6)


def test_it_stays_1_with_the_reason_where_the_images_do_not_support_another():
    logits, labels = draw(49, 3.0)
    choice = choose_temperature(logits, labels)
    assert (choice.value, "49 validation images" in choice.reason) == (1.0, True)
    assert choose_temperature(torch.empty(0, 1), torch.empty(0, dtype=torch.int64)).value == 1
    right = F.one_hot(torch.arange(60) % 3, 3).double()
    choice = choose_temperature(right, torch.arange(60) % 3)
    assert (choice.value, "all 60 validation images are correct" in choice.reason) == (1.0, True)
    logits, labels = draw(100, 3.0)
    logits[7, 0] = -torch.inf
    assert choose_temperature(logits, labels).value == 1


def test_one_confident_mistake_does_not_lower_the_temperature():
    """The half without it would say that nothing is ever wrong."""
    logits = F.one_hot(torch.zeros(60, dtype=torch.int64), 3).double() * 2
    labels = torch.zeros(60, dtype=torch.int64)
    labels[3] = 1
    assert fit_temperature(logits, labels) < 0.9
    assert choose_temperature(logits, labels).value == 1
