"""Computes metrics of a PredictionTable. Images are counted first and divided once at the end.

K classes, n images; z is the two-sided normal quantile of the intervals' level, 95% by default.
"""

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from onsight.evaluation.predictions import PredictionTable
from onsight.evaluation.results import (
    CalibrationBin,
    ClassResult,
    ConfusedPair,
    Results,
    TtaResult,
    ValidationResult,
)
from onsight.evaluation.statistics import Z_95, mean_proportion, wilson

_BINS = 15  # bins of the calibration error, as in Guo et al., arXiv:1706.04599
_MAX_CONFUSION_CLASSES = 1000  # with more classes, no confusion matrix is stored

# Pairs of classes are compared by the accuracy between the two, of which chance is 0.5.
_MIN_IMAGES = 10  # images of each class; pairs with fewer are skipped
_CLEARLY_ABOVE_CHANCE = 0.75
_GOOD_ACCURACY = 0.95
_MIN_RATIO = 3  # how many times its even share of all mistakes a confused pair has


def compute_metrics(table: PredictionTable, classes: Sequence[str], z: float = Z_95) -> Results:
    """Compute all metrics. Proportions of no images are None."""
    images = len(table)
    results: dict[str, Any] = {"images": images}
    results |= accuracy_with_interval(table, z=z)
    results |= _balanced_accuracy(table, len(classes), z)
    results["loss"] = float(table.losses.sum(dtype=np.float64)) / images if images else None
    results["largest_loss"] = float(table.losses.max()) if images else None
    if len(classes) > 5:
        results |= proportion_with_interval("top5", int(table.in_top5.sum()), images, z)
    else:
        results["top5"] = None
    results |= _calibration("", table.confidence, table)
    if not np.array_equal(table.confidence, table.raw_confidence):
        results |= _calibration("_before", table.raw_confidence, table)
    results["classes"] = class_results(table, classes, z)
    results["confusion"] = results["confused_pairs"] = None
    if len(classes) <= _MAX_CONFUSION_CLASSES:
        confusion = confusion_matrix(table, len(classes))
        results["confusion"] = confusion.tolist()
        results["confused_pairs"] = find_confused_pairs(confusion, classes, z)
    return cast(Results, results)


def tta_results(table: PredictionTable, tta: str, z: float = Z_95) -> TtaResult:
    """Return the accuracy with test-time augmentation."""
    accuracy = accuracy_with_interval(table, "tta_accuracy", z)
    return cast(TtaResult, {"tta": tta, "tta_images": len(table), **accuracy})


def validation_results(table: PredictionTable) -> ValidationResult:
    """Return the accuracy and the loss on validation images."""
    loss = float(table.losses.mean()) if len(table) else None
    accuracy = accuracy_with_interval(table, "validation_accuracy")
    facts = {"validation_images": len(table), **accuracy, "validation_loss": loss}
    return cast(ValidationResult, facts)


def accuracy_with_interval(
    table: PredictionTable, name: str = "accuracy", z: float = Z_95
) -> dict[str, float | None]:
    """Return the accuracy, as `proportion_with_interval` does."""
    correct = int((table.labels == table.predicted).sum())
    return proportion_with_interval(name, correct, len(table), z)


def proportion_with_interval(
    name: str, successes: int, count: int, z: float = Z_95
) -> dict[str, float | None]:
    """Return a proportion and its confidence interval as `name`, `name_low` and `name_high`.

    Args:
        count: The denominator. If it is 0, the values are None.
    """
    if count == 0:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = wilson(successes, count, z)
    return {name: successes / count, f"{name}_low": low, f"{name}_high": high}


def class_results(
    table: PredictionTable, classes: Sequence[str], z: float = Z_95
) -> list[ClassResult]:
    """Return recall, precision, one-vs-rest accuracy and F1 of each class."""
    count, total = len(classes), len(table)
    is_correct = table.labels == table.predicted
    correct = np.bincount(table.labels[is_correct], minlength=count)
    images = np.bincount(table.labels, minlength=count)
    predicted = np.bincount(table.predicted, minlength=count)
    rows: list[dict[str, Any]] = []
    for index, name in enumerate(classes):
        hits, positives, claims = (int(counts[index]) for counts in (correct, images, predicted))
        right = total - positives - claims + 2 * hits  # one-vs-rest
        rows.append(
            {
                "name": name,
                "images": positives,
                "predicted": claims,
                **proportion_with_interval("recall", hits, positives, z),
                **proportion_with_interval("precision", hits, claims, z),
                **proportion_with_interval("accuracy", right, total, z),
                "f1": 2 * hits / (positives + claims) if positives + claims else None,
            }
        )
    return cast(list[ClassResult], rows)


def confusion_matrix(table: PredictionTable, classes: int) -> NDArray[np.int64]:
    """Return counts (K, K): rows are labels, columns are predictions."""
    cells = table.labels * classes + table.predicted
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def find_confused_pairs(
    confusion: NDArray[np.int64], names: Sequence[str], z: float = Z_95
) -> list[ConfusedPair]:
    """Return the pairs of classes that the model confuses, the worst first.

    The accuracy of a pair is the mean of both recalls among its images that were predicted as
    either class, so chance is one half. A pair is indistinguishable (`no`) if its 95% interval
    includes one half and the upper end of its Bonferroni-corrected interval is below 75%. A pair is
    hard to distinguish (`hardly`) if its proportion of all mistakes is significantly more than 3
    times that of an even spread, with the same correction, and the upper end of its 95% interval
    is below 95%.

    Args:
        confusion: Counts (K, K), whose rows are labels.
    """
    classes, mistakes = len(names), int(confusion.sum() - confusion.trace())
    all_pairs = classes * (classes - 1) // 2
    confusions = confusion + confusion.T
    confused_pairs = []
    for a, b in np.argwhere(np.triu(confusions, 1)).tolist():
        correct = int(confusion[a, a]), int(confusion[b, b])
        counts = correct[0] + int(confusion[a, b]), correct[1] + int(confusion[b, a])
        if min(counts) < _MIN_IMAGES:
            continue
        recalls = list(zip(correct, counts, strict=True))
        accuracy, low, high = mean_proportion(recalls, z)
        strict_z = NormalDist().inv_cdf(1 - 0.025 / all_pairs) * z / Z_95
        strict_high = mean_proportion(recalls, strict_z)[2]
        confused = int(confusions[a, b])
        is_chance = low <= 0.5 and strict_high < _CLEARLY_ABOVE_CHANCE
        is_frequent = wilson(confused, mistakes, strict_z)[0] > _MIN_RATIO / all_pairs
        if is_chance or (is_frequent and high < _GOOD_ACCURACY):
            confused_pairs.append(
                ConfusedPair(
                    classes=(names[a], names[b]),
                    told_apart="no" if is_chance else "hardly",
                    images=sum(counts),
                    accuracy=accuracy,
                    accuracy_low=low,
                    accuracy_high=high,
                    mistakes=confused,
                )
            )
    return sorted(confused_pairs, key=lambda pair: (pair["told_apart"] != "no", pair["accuracy"]))


def calibration_bins(
    confidence: NDArray[np.float32], right: NDArray[np.bool_]
) -> list[CalibrationBin]:
    """Return the mean confidence and accuracy of images in 15 equally wide bins of confidence.

    Args:
        confidence: Probabilities of the predicted classes, (n,).
        right: True for correct predictions, (n,).
    """
    bins = np.clip(np.ceil(confidence * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    images = np.bincount(bins, minlength=_BINS)
    summed = np.bincount(bins, confidence.astype(np.float64), minlength=_BINS)
    correct = np.bincount(bins, right, minlength=_BINS)
    return [
        {
            "low": index / _BINS,
            "high": (index + 1) / _BINS,
            "images": int(images[index]),
            "confidence": float(summed[index] / images[index]) if images[index] else None,
            "accuracy": float(correct[index] / images[index]) if images[index] else None,
        }
        for index in range(_BINS)
    ]


def expected_calibration_error(bins: Sequence[CalibrationBin], images: int) -> float | None:
    """Return the mean difference between confidence and accuracy, weighted by images.

    Args:
        bins: The bins of `calibration_bins`.
        images: The number of images n. If it is 0, the error is None.
    """
    if images == 0:
        return None
    gaps = (
        row["images"] * abs(row["confidence"] - row["accuracy"])
        for row in bins
        if row["confidence"] is not None and row["accuracy"] is not None
    )
    return float(sum(gaps) / images)


def _balanced_accuracy(table: PredictionTable, classes: int, z: float) -> dict[str, float | None]:
    is_correct = table.labels == table.predicted
    images = np.bincount(table.labels, minlength=classes)
    correct = np.bincount(table.labels[is_correct], minlength=classes)
    recalls = [(int(hits), int(n)) for hits, n in zip(correct, images, strict=True) if n]
    values = mean_proportion(recalls, z) if recalls else (None, None, None)
    names = ("balanced_accuracy", "balanced_accuracy_low", "balanced_accuracy_high")
    return dict(zip(names, values, strict=True))


def _calibration(
    suffix: str, confidence: NDArray[np.float32], table: PredictionTable
) -> dict[str, Any]:
    bins = calibration_bins(confidence, table.labels == table.predicted)
    error = expected_calibration_error(bins, len(table))
    return {f"expected_calibration_error{suffix}": error, f"calibration{suffix}": bins}
