"""Wrong labels planted in features whose classes are known."""

import numpy as np
import pytest
import torch

from onsight.audit.labels import OutOfFoldPredictions, find_label_errors, predict_out_of_fold

CLASSES, DIMENSIONS = 4, 8


def features(count: int, apart: float, seed: int = 0):
    """Points around the centres of their classes: (features, labels, groups)."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count).astype(np.int32)
    centres = apart * np.eye(CLASSES, DIMENSIONS)
    points = centres[labels] + rng.normal(size=(count, DIMENSIONS))
    groups = rng.integers(0, 256, (count, 16), np.uint8)
    return torch.from_numpy(points.astype(np.float32)), labels, groups


def test_planted_wrong_labels_come_first():
    points, labels, groups = features(800, apart=6.0)
    wrong = np.random.default_rng(1).choice(800, 40, replace=False)
    given = labels.copy()
    given[wrong] = (given[wrong] + 1) % CLASSES
    rows, scores = find_label_errors(predict_out_of_fold(points, given, groups))
    right = set(rows.tolist()) & set(wrong.tolist())
    assert len(right) >= 35
    assert len(rows) - len(right) <= 2
    assert (np.diff(scores) <= 0).all()


def test_hard_classes_alone_are_no_label_errors():
    points, labels, groups = features(800, apart=1.5)
    predictions = predict_out_of_fold(points, labels, groups)
    mistakes = int((predictions.predicted != predictions.labels).sum())
    assert len(find_label_errors(predictions)[0]) < 0.75 * mistakes


def test_no_image_is_predicted_by_a_model_trained_on_it_or_its_copy():
    """Noise cannot be predicted, unless a copy with the same label was seen."""
    rng = np.random.default_rng(0)
    points = torch.from_numpy(rng.normal(size=(300, 200)).astype(np.float32))
    labels = rng.integers(0, 2, 300).astype(np.int32)
    groups = rng.integers(0, 256, (300, 16), np.uint8)
    twice = torch.cat([points, points])
    predictions = predict_out_of_fold(twice, np.tile(labels, 2), np.tile(groups, (2, 1)))
    assert abs((predictions.predicted == predictions.labels).mean() - 0.5) < 0.1
    apart = rng.integers(0, 256, (600, 16), np.uint8)
    leaky = predict_out_of_fold(twice, np.tile(labels, 2), apart)
    assert (leaky.predicted == leaky.labels).mean() > 0.6


def test_probabilities_are_those_of_each_image():
    points, labels, groups = features(200, apart=6.0)
    predictions = predict_out_of_fold(points, labels, groups)
    assert isinstance(predictions, OutOfFoldPredictions)
    assert predictions.probabilities.shape == (200, CLASSES)
    assert predictions.probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    assert (predictions.predicted == labels).mean() > 0.97
