"""Oracles: scikit-learn, plain loops in float64, and a published example."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn

from onsight.data.loader import Batch
from onsight.evaluation.metrics import calibration_bins, class_results, compute_metrics, tta_results
from onsight.evaluation.predictions import PredictionTable, evaluate_batches
from onsight.evaluation.results import CalibrationBin, ClassResult, EvaluationMetrics, TtaResult
from onsight.evaluation.statistics import wilson

CLASSES = tuple("abcdefg")


def make_batches(count, batch_size, classes=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, generator=generator) * 2
    labels = torch.randint(0, classes, (count,), generator=generator)
    logits[torch.arange(count), labels] += 1.5
    ids = torch.arange(count)
    batches = [Batch(i.view(-1, 1, 1, 1), labels[i], i, labels[i]) for i in ids.split(batch_size)]
    return (lambda images: logits[images.view(-1)]), batches, logits, labels


def summarised(count, batch_size, classes=7):
    forward, batches, logits, labels = make_batches(count, batch_size, classes)
    names = [str(number) for number in range(classes)]
    return compute_metrics(evaluate_batches(forward, batches), names), logits, labels


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1001])
def test_results_equal_scikit_learn_for_every_batch_size(batch_size):
    results, logits, labels = summarised(1001, batch_size)
    predicted = logits.argmax(1)
    assert results["images"] == 1001
    assert results["accuracy"] == sklearn.accuracy_score(labels, predicted)
    balanced = results["balanced_accuracy"]
    assert balanced == pytest.approx(sklearn.balanced_accuracy_score(labels, predicted), abs=1e-12)
    assert results["balanced_accuracy_low"] < balanced < results["balanced_accuracy_high"]
    assert results["loss"] == pytest.approx(
        F.cross_entropy(logits.double(), labels).item(), abs=1e-6
    )
    assert results["top5"] == sklearn.top_k_accuracy_score(labels, logits, k=5)
    assert results["confusion"] == sklearn.confusion_matrix(labels, predicted).tolist()
    precision, recall, f1, count = sklearn.precision_recall_fscore_support(labels, predicted)
    for number, row in enumerate(results["classes"]):
        assert row["precision"] == pytest.approx(precision[number], abs=1e-12)
        assert row["recall"] == pytest.approx(recall[number], abs=1e-12)
        assert row["f1"] == pytest.approx(f1[number], abs=1e-12)
        assert row["images"] == count[number]
        expected = sklearn.accuracy_score(labels == number, predicted == number)
        assert row["accuracy"] == pytest.approx(expected, abs=1e-12)


def test_results_are_the_same_whatever_the_batches():
    first, *others = [summarised(1001, size)[0] for size in (1, 7, 64, 1001)]
    assert all(other == first for other in others)


def test_calibration_error_equals_a_plain_loop():
    results, logits, labels = summarised(2000, 64)
    confidence, predicted = logits.softmax(1).max(1)
    confidence = confidence.numpy().astype(np.float64)
    right = (predicted == labels).numpy()
    expected = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        if inside.any():
            gap = abs(confidence[inside].mean() - right[inside].mean())
            expected += inside.mean() * gap
    assert results["expected_calibration_error"] == pytest.approx(expected, abs=1e-9)
    assert sum(b["images"] for b in results["calibration"]) == 2000


def test_calibration_is_reported_before_and_after_temperature_scaling():
    forward, batches, _, _ = make_batches(500, 64)
    plain = compute_metrics(evaluate_batches(forward, batches), CLASSES)
    cooled = evaluate_batches(lambda images: forward(images) / 1.7, batches, 1.7)
    results = compute_metrics(cooled, CLASSES)
    error = plain["expected_calibration_error"]
    assert results["expected_calibration_error_before"] == pytest.approx(error, abs=1e-6)
    assert results["expected_calibration_error"] != pytest.approx(error, abs=1e-3)
    assert [row["images"] for row in results["calibration_before"]] == [
        row["images"] for row in plain["calibration"]
    ]
    for same in ("accuracy", "confusion", "classes", "top5", "balanced_accuracy"):
        assert results[same] == plain[same]
    assert "calibration_before" not in plain


@pytest.mark.parametrize("classes", [5, 7])
def test_results_have_the_keys_of_their_types(classes):
    results = summarised(50, 8, classes)[0]
    assert (
        EvaluationMetrics.__required_keys__
        <= results.keys()
        <= EvaluationMetrics.__annotations__.keys()
    )
    assert {*results["classes"][0]} == ClassResult.__required_keys__
    assert {*results["calibration"][0]} == CalibrationBin.__required_keys__
    per_image = evaluate_batches(*make_batches(50, 8, classes)[:2])
    assert tta_results(per_image, "flip").keys() == TtaResult.__annotations__.keys()


def test_a_confidence_at_the_edge_of_two_bins_is_in_the_lower():
    numbers, confidence = np.arange(3), np.array([3 / 15, 9 / 15, 1.0], np.float32)
    exact = (confidence * 15).tolist()
    assert exact == [3, 9, 15]
    filled = [n for n, row in enumerate(calibration_bins(confidence, numbers > 9)) if row["images"]]
    assert filled == [2, 8, 14]  # (2/15, 3/15] and so on, as in Guo et al.


def test_five_classes_have_no_top5():
    results, _, _ = summarised(50, 8, classes=5)
    assert results["top5"] is None
    assert not evaluate_batches(*make_batches(50, 8, classes=5)[:2]).in_top5.any()


def test_nothing_held_out_claims_nothing():
    results = compute_metrics(evaluate_batches(lambda images: images, []), CLASSES)
    assert results["images"] == 0
    assert results["accuracy"] is results["balanced_accuracy"] is None
    assert results["confused_pairs"] == []
    assert results["expected_calibration_error"] is None
    assert all(row["recall"] is None for row in results["classes"])


def test_classes_without_images_or_predictions_have_no_shares():
    forward = lambda images: F.one_hot(torch.zeros(4, dtype=torch.long), 7).float()  # noqa: E731
    labels = torch.tensor([0, 0, 1, 1])
    batch = Batch(torch.zeros(4, 1, 1, 1), labels, torch.arange(4), labels)
    rows = compute_metrics(evaluate_batches(forward, [batch]), CLASSES)["classes"]
    assert compute_metrics(evaluate_batches(forward, [batch]), CLASSES)["balanced_accuracy"] == 0.5
    assert rows[0]["recall"] == 1.0
    assert rows[0]["precision"] == 0.5
    assert rows[1]["recall"] == 0.0
    assert rows[1]["precision"] is None
    assert rows[2]["recall"] is None


def test_wilson_equals_the_root_of_its_definition():
    """Its ends are the shares p at which the observed share lies z standard errors away."""
    for successes, count in [(1, 10), (8, 10), (81, 263), (9140, 10_000)]:
        for end in wilson(successes, count):
            error = np.sqrt(end * (1 - end) / count)
            assert abs(successes / count - end) / error == pytest.approx(1.959964, abs=1e-5)


def test_wilson_at_the_edges():
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(81, 263)  # Newcombe, Statistics in Medicine 17 (1998), table I
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)


def test_f1_is_undefined_only_for_a_class_without_images_and_predictions():
    labels, predicted, zeros = np.array([0, 1]), np.array([0, 0]), np.zeros(2, np.float32)
    table = PredictionTable(
        np.arange(2),
        labels,
        predicted,
        zeros,
        zeros,
        np.zeros(2, bool),
        zeros,
        zeros,
        np.zeros((2, 3), np.float32),
    )
    rows = class_results(table, ("a", "b", "c"))
    assert [row["f1"] for row in rows] == [pytest.approx(2 / 3), 0, None]
