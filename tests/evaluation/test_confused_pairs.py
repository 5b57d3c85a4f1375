"""Planted: classes that are the same, that overlap, and that lie far apart."""

import numpy as np
import pytest
import torch

from onsight.evaluation.metrics import compute_metrics, find_confused_pairs
from onsight.evaluation.predictions import HeldOutLogits
from onsight.evaluation.statistics import Z_95 as Z

NAMES = tuple("abcdef")
FAR = np.arange(6) * 8.0


def classify(centres, per_class, seed):
    """The confusion matrix of picking the nearest centre, equal ones by chance."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(centres)), per_class)
    seen = rng.normal(centres[labels])
    gaps = np.abs(seen[:, None] - centres[None, :]) + rng.uniform(
        0, 1e-6, (len(seen), len(centres))
    )
    confusion = np.zeros((len(centres),) * 2, np.int64)
    np.add.at(confusion, (labels, gaps.argmin(1)), 1)
    return confusion


@pytest.mark.parametrize("seed", range(8))
def test_identical_classes_are_found_and_no_others(seed):
    centres = FAR.copy()
    centres[4] = centres[1]
    found = find_confused_pairs(classify(centres, 60, seed), NAMES)
    assert [(pair["classes"], pair["told_apart"]) for pair in found] == [(("b", "e"), "no")]
    assert found[0]["accuracy_low"] <= 0.5 <= found[0]["accuracy_high"]
    assert found[0]["images"] == 120


@pytest.mark.parametrize("seed", range(8))
def test_well_separated_and_evenly_overlapping_classes_are_not_found(seed):
    assert find_confused_pairs(classify(FAR, 60, seed), NAMES) == []
    rng = np.random.default_rng(seed)
    even = np.stack(
        [rng.multinomial(100, np.where(np.arange(6) == k, 0.8, 0.04)) for k in range(6)]
    )
    assert find_confused_pairs(even, NAMES) == []


@pytest.mark.parametrize("seed", range(8))
def test_overlapping_classes_are_hard_but_not_impossible_to_distinguish(seed):
    centres = FAR.copy()
    centres[3] = centres[2] + 2  # right for 84%
    found = find_confused_pairs(classify(centres, 200, seed), NAMES)
    assert [(pair["classes"], pair["told_apart"]) for pair in found] == [(("c", "d"), "hardly")]
    assert found[0]["accuracy"] == pytest.approx(0.84, abs=0.06)


def test_few_images_prove_nothing():
    centres = np.array([0.0, 0.0, 9.0])
    assert find_confused_pairs(classify(centres, 9, 0), "abc") == []
    assert find_confused_pairs(np.zeros((3, 3), np.int64), "abc") == []
    assert find_confused_pairs(np.array([[5]]), "a") == []


def test_a_constant_prediction_distinguishes_no_classes():
    (pair,) = find_confused_pairs(np.array([[40, 0], [30, 0]]), ("cats", "dogs"))
    assert (pair["told_apart"], pair["accuracy"], pair["images"]) == ("no", 0.5, 70)
    assert pair["mistakes"] == 30


def test_intervals_of_pairs_are_as_wide_as_those_of_the_accuracy():
    labels, predicted = (torch.tensor(row).repeat(30) for row in ([0, 0, 1, 1, 2], [0, 1, 1, 0, 2]))
    logits = torch.nn.functional.one_hot(predicted).float()
    table = HeldOutLogits(torch.arange(len(labels)), logits, labels).tabulate()
    (plain,), (wide,) = (compute_metrics(table, "abc", z)["confused_pairs"] for z in (Z, 1.5 * Z))
    widths = [row["accuracy_high"] - row["accuracy_low"] for row in (plain, wide)]
    assert widths[1] == pytest.approx(1.5 * widths[0], rel=0.03)


def test_a_rare_class_counts_as_much_as_a_common_one():
    (pair,) = find_confused_pairs(np.array([[990, 10], [19, 1]]), ("common", "rare"))
    assert pair["accuracy"] == pytest.approx((0.99 + 0.05) / 2)
    assert pair["told_apart"] == "no"
