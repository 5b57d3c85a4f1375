"""Oracles: torch's own functions and formulas in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from onsight.step.losses import choose_class_weights, class_weights, make_loss

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(11, 4, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(0, 4, (11,), generator=GENERATOR)
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 0.1], dtype=torch.float64)
ONE_HOT = torch.eye(4, dtype=torch.float64)


def test_cross_entropy_equals_torchs():
    loss = make_loss("cross-entropy", 0.1, WEIGHTS)(LOGITS, LABELS)
    assert loss == F.cross_entropy(LOGITS, LABELS, weight=WEIGHTS, label_smoothing=0.1)


def test_mse_equals_the_tutorials_loss():
    loss = make_loss("mse", 0.0, None)(LOGITS, LABELS)
    expected = torch.nn.MSELoss()(LOGITS.softmax(1), ONE_HOT[LABELS])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_smoothed_mse_is_against_smoothed_labels():
    loss = make_loss("mse", 0.2, None)(LOGITS, LABELS)
    expected = torch.nn.MSELoss()(LOGITS.softmax(1), ONE_HOT[LABELS] * 0.8 + 0.05)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_weighted_mse_is_the_weighted_mean():
    loss = make_loss("mse", 0.0, WEIGHTS)(LOGITS, LABELS)
    errors = (LOGITS.softmax(1) - ONE_HOT[LABELS]).square().mean(1)
    weights = WEIGHTS[LABELS]
    expected = (errors * weights).sum() / weights.sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)


def test_weighted_mse_of_class_probabilities_weighs_each_class_by_its_probability():
    shares = ONE_HOT[LABELS] * 0.75 + ONE_HOT[(LABELS + 1) % 4] * 0.25
    loss = make_loss("mse", 0.0, WEIGHTS)(LOGITS, shares)
    errors = (LOGITS.softmax(1) - shares).square().mean(1)
    weights = 0.75 * WEIGHTS[LABELS] + 0.25 * WEIGHTS[(LABELS + 1) % 4]
    assert loss.item() == pytest.approx((errors * weights).mean().item(), rel=1e-12)


def test_balanced_weights_equal_scikit_learns():
    labels = torch.tensor([0] * 90 + [1] * 9 + [2])
    weights = class_weights(torch.bincount(labels, minlength=3), "balanced")
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels.numpy())
    assert torch.allclose(weights.double(), torch.from_numpy(expected), rtol=1e-6)


def test_a_class_without_images_has_weight_zero():
    for how in ("none", "sqrt", "balanced"):
        assert class_weights(torch.tensor([5, 0, 5]), how).tolist() == [1.0, 0.0, 1.0]


def test_root_weights_go_half_of_the_way():
    """In logarithms, between none and balanced; the mean over the images stays 1."""
    counts = torch.tensor([900, 90, 9, 1])
    none, root, balanced = (class_weights(counts, how) for how in ("none", "sqrt", "balanced"))
    assert none.tolist() == [1.0] * 4
    assert torch.allclose(root / root[0], (balanced / balanced[0]).sqrt(), rtol=1e-6)
    for weights in (root, balanced):
        assert (weights * counts).sum().item() == pytest.approx(counts.sum().item(), rel=1e-6)


def test_weights_are_chosen_where_a_class_has_over_five_times_the_images_of_another():
    for counts, how in [
        ([50, 10, 0], "none"),
        ([51, 10, 0], "sqrt"),
        ([7, 7], "none"),
        ([0, 0], "none"),
    ]:
        choice = choose_class_weights("auto", torch.tensor(counts))
        assert choice.value == how
    assert choose_class_weights("auto", torch.tensor([2000, 20])).reason == (
        "the largest class has 100 times the training images of the smallest"
    )
    for asked in ("none", "balanced"):
        assert choose_class_weights(asked, torch.tensor([2000, 20])).value == asked


def test_weights_move_with_the_module():
    loss = make_loss("cross-entropy", 0.0, WEIGHTS).to("meta")
    assert loss.weights.device.type == "meta"
