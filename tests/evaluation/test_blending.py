"""Oracle: scipy's constrained minimisation of the log loss; members with planted skill."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from onsight.evaluation.blending import choose_weights


def members(count, skills, classes=4, seed=0):
    """Log-probabilities of members that see the label with more or less noise, and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    truth = torch.nn.functional.one_hot(labels, classes).double()
    noises = [torch.randn(count, classes, generator=generator) for _ in skills]
    logits = [skill * truth + noise for skill, noise in zip(skills, noises, strict=True)]
    names = ("head", "small", "tuned", "other")
    return {
        name: row.log_softmax(1).float() for name, row in zip(names, logits, strict=False)
    }, labels


def loss(log_probabilities, labels, weights):
    """The log loss of the weighted mean of probabilities."""
    rows = np.arange(len(labels))
    mixed = sum(
        weights.get(name, 0) * np.exp(values.double().numpy())
        for name, values in log_probabilities.items()
    )
    return -np.log(mixed[rows, labels.numpy()]).mean()


def scipys_optimum(log_probabilities, labels):
    """The lowest log loss, and its weights."""
    names = list(log_probabilities)
    found = minimize(
        lambda weights: loss(
            log_probabilities, labels, dict(zip(names, weights / weights.sum(), strict=True))
        ),
        np.full(len(names), 1 / len(names)),
        bounds=[(1e-9, 1)] * len(names),
        options={"ftol": 1e-12},
    )
    return found.fun, dict(zip(names, found.x / found.x.sum(), strict=True))


def standard_error(log_probabilities, labels, weights, others):
    """Of the mean difference between the losses of two blends."""
    rows = np.arange(len(labels))
    losses = [
        -np.log(
            sum(
                weight * np.exp(log_probabilities[name].double().numpy())[rows, labels.numpy()]
                for name, weight in chosen.items()
            )
        )
        for chosen in (weights, others)
    ]
    return (losses[0] - losses[1]).std() / len(labels) ** 0.5


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("skills", [(2, 2.5), (1, 2, 2.2), (1.5, 1.6, 1.4, 1.5)])
def test_the_loss_is_within_a_standard_error_of_the_lowest_that_scipy_finds(skills, seed):
    given, labels = members(500, skills, seed=seed)
    weights = choose_weights(given, labels)
    assert sum(weights.values()) == pytest.approx(1)
    kept = {name: given[name] for name in weights}
    lowest, optimum = scipys_optimum(kept, labels)
    rise = loss(given, labels, weights) - lowest
    assert -1e-6 < rise <= standard_error(given, labels, weights, optimum) + 1e-5
    assert lowest < scipys_optimum(given, labels)[0] + 3e-3  # of a small member
    assert loss(given, labels, weights) <= min(loss(given, labels, {name: 1}) for name in given)
    distance, furthest = (
        sum((chosen[name] - 1 / len(weights)) ** 2 for name in weights)
        for chosen in (weights, optimum)
    )
    assert distance <= furthest + 1e-6


def test_many_images_determine_the_weights():
    given, labels = members(100_000, (2, 2.3))
    optimum = scipys_optimum(given, labels)[1]
    weights = choose_weights(given, labels)
    assert weights == pytest.approx(optimum, abs=0.05)
    assert weights["small"] > 0.6


@pytest.mark.parametrize("count", [100, 1000])
def test_a_hopeless_member_is_dropped(count):
    given, labels = members(count, (2, 2.1, -3))
    assert list(choose_weights(given, labels)) == ["head", "small"]


@pytest.mark.parametrize("count", [100, 1000])
def test_identical_members_share_equally(count):
    given, labels = members(count, (2,))
    given["copy"] = given["head"].clone()
    assert choose_weights(given, labels) == {"head": 0.5, "copy": 0.5}


def test_few_images_do_not_tell_similar_members_apart():
    given, labels = members(199, (2, 2.1))
    assert choose_weights(given, labels) == {"head": 0.5, "small": 0.5}


def test_without_images_the_first_member_stands_alone():
    given, labels = members(0, (1, 5))
    assert choose_weights(given, labels) == {"head": 1.0}


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_labels_of_one_class_go_to_those_who_know_it(count):
    labels = torch.zeros(count, dtype=torch.int64)
    right = torch.tensor([[0.9, 0.1]]).log().expand(count, 2)
    wrong = torch.tensor([[0.2, 0.8]]).log().expand(count, 2)
    assert choose_weights({"wrong": wrong, "right": right}, labels) == {"right": 1.0}


def test_a_member_without_finite_outputs_is_dropped():
    given, labels = members(500, (2, 2, 2))
    given["small"] = given["small"] * torch.nan
    given["tuned"][:20] = -torch.inf  # certain that 20 labels are impossible
    assert list(choose_weights(given, labels)) == ["head", "tuned"]


def test_an_equal_share_that_is_worse_than_the_best_member_is_not_kept():
    """The other member is much better on one image, and worse on all others."""
    labels = torch.zeros(10, dtype=torch.int64)
    losses = torch.full((10,), 0.5)
    others = losses + torch.tensor([-0.45, *[0.2] * 9])
    given = {
        name: -torch.stack([values, values], dim=1)
        for name, values in (("best", losses), ("other", others))
    }
    weights = choose_weights(given, labels)
    assert loss(given, labels, {"best": 0.5, "other": 0.5}) > loss(given, labels, {"best": 1})
    assert loss(given, labels, weights) <= loss(given, labels, {"best": 1})
    assert weights.get("other", 0) < 0.5
