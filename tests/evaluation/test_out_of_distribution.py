"""Oracles: scikit-learn's neighbours and AUROC, float64, binomial bounds; planted strangers."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binom
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from onsight.evaluation.out_of_distribution import (
    choose_detector,
    detector_results,
    pool_folds,
    set_threshold,
)
from onsight.models.out_of_distribution import (
    NEAREST,
    OutOfDistributionDetector,
    is_out_of_distribution,
    score,
)

WIDE = 32


def draw(count, seed=0, around=1.0):
    """Features of images of four classes, around four directions."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.eye(WIDE)[:4] * 5 * around
    labels = torch.randint(0, 4, (count,), generator=generator)
    return centres[labels] + torch.randn(count, WIDE, generator=generator)


def strangers(count):
    return torch.eye(WIDE)[9] * 8 + torch.randn(count, WIDE)


def test_the_score_is_scikit_learns_distance_in_float64():
    seen, others = draw(300), torch.cat([draw(200, seed=1), strangers(50)])
    stored = choose_detector(seen, draw(100, seed=2)).value
    nearest = NearestNeighbors(n_neighbors=NEAREST, metric="cosine", algorithm="brute")
    distances, _ = nearest.fit(seen.double().numpy()).kneighbors(others.double().numpy())
    found = score(others, stored.bank).numpy()
    np.testing.assert_allclose(found, distances[:, -1], atol=1e-3)  # the bank is of float16
    rows = F.normalize(others.double(), dim=1) @ stored.bank.double().T
    exact = 1 - rows.sort(dim=1, descending=True).values[:, NEAREST - 1]
    np.testing.assert_allclose(found, exact.numpy(), atol=1e-6)


def test_planted_out_of_distribution_images_are_flagged():
    stored = choose_detector(draw(500), draw(500, seed=1)).value
    usual = score(draw(500, seed=2), stored.bank).numpy()
    strange = score(strangers(100), stored.bank).numpy()
    truth = np.repeat([0, 1], [len(usual), len(strange)])
    assert roc_auc_score(truth, np.concatenate([usual, strange])) > 0.999
    assert is_out_of_distribution(strange, stored).mean() > 0.95
    assert is_out_of_distribution(np.array([np.nan], np.float32), stored).all()


def test_the_score_does_not_depend_on_the_batch():
    stored = choose_detector(draw(100), draw(100, seed=1)).value
    features = draw(64, seed=2)
    together = score(features, stored.bank)
    alone = torch.cat([score(vector[None], stored.bank) for vector in features])
    torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)
    assert torch.equal(score(features.flip(0), stored.bank).flip(0), together)


@pytest.mark.parametrize("count", [20, 98, 99, 100, 350, 1000])
def test_the_threshold_flags_the_promised_share_of_new_images(count):
    """For exchangeable scores, the mean share flagged is a fraction of ranks, known exactly."""
    stored = OutOfDistributionDetector(torch.zeros(5, 1).half(), math.inf, 0.0, 0)
    rng = np.random.default_rng(0)
    rounds = 4000
    flagged = 0
    for _ in range(rounds):
        scores = rng.random(count + 1, np.float32)
        found = set_threshold(stored, torch.from_numpy(scores[:-1]))
        flagged += int(is_out_of_distribution(scores[-1:], found)[0])
    low, high = binom.ppf(
        [1e-5, 1 - 1e-5], rounds, [found.false_alarm_rate * 0.9, found.false_alarm_rate]
    )
    assert low <= flagged <= high
    assert found.false_alarm_rate == max(0.01, 1 / (count + 1))
    assert found.images == count
    expected = count - math.ceil(0.99 * (count + 1) - 1e-9) if count >= 99 else 0
    assert is_out_of_distribution(scores[:-1], found).sum() == expected


def test_folds_are_tested_with_the_threshold_of_the_others():
    stored = OutOfDistributionDetector(torch.zeros(5, 1).half(), math.inf, 0.0, 0)
    scores = np.linspace(0, 1, 300, dtype=np.float32)
    folds = np.repeat(np.array([1, 2, 3], np.int8), 100)  # the last fold has the highest
    pooled, flagged = pool_folds(stored, scores, folds)
    assert (pooled.images, pooled.threshold) == (300, float(scores[297]))
    assert flagged.tolist() == [False] * 200 + [True] * 100
    result = detector_results(pooled, flagged)
    assert (result["images"], result["flagged"]) == (300, 1 / 3)


def test_too_few_images_or_none_to_compare_give_no_threshold_but_a_reason():
    choice = choose_detector(draw(100), draw(19))
    assert choice.value is None
    assert choice.reason == "19 validation images, and setting a threshold takes 20"
    assert choose_detector(torch.zeros(0, 0), torch.zeros(0, 0)).value is None
    choice = choose_detector(torch.zeros(50, 0), torch.zeros(50, 0))
    assert (choice.value, "end in a linear layer" in choice.reason) == (None, True)
    damaged = draw(100)
    damaged[3, 3] = math.inf
    choice = choose_detector(draw(100), damaged)
    assert (choice.value, "not every output" in choice.reason) == (None, True)


def test_a_blank_feature_vector_has_a_score():
    stored = choose_detector(draw(100), draw(100, seed=1)).value
    assert score(torch.zeros(1, WIDE), stored.bank).tolist() == [1.0]
