"""Metrics from per-image predictions: counted first, divided once, an interval for each share."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from onsight.evaluation.intervals import Z_95, mean_share, wilson
from onsight.evaluation.pairs import confused_pairs
from onsight.evaluation.per_image import PerImageResults
from onsight.evaluation.results import CalibrationBin, ClassResult, Results, TtaResult

_BINS = 15  # of the calibration error, as in Guo et al., arXiv:1706.04599
_MOST_CLASSES = 1000  # the largest confusion matrix that is kept


def summarise(per_image: PerImageResults, classes: Sequence[str], z: float = Z_95) -> Results:
    """All metrics of the predictions; shares are None where n is 0. z: of the intervals."""
    images = len(per_image)
    right = int((per_image.labels == per_image.predicted).sum())
    results: dict[str, Any] = {"images": images, **share("accuracy", right, images, z)}
    results |= _balanced_accuracy(per_image, len(classes), z)
    results["loss"] = float(per_image.losses.sum(dtype=np.float64)) / images if images else None
    if len(classes) > 5:
        results |= share("top5", int(per_image.in_top5.sum()), images, z)
    else:
        results["top5"] = None
    results |= _calibration("", per_image.confidence, per_image)
    if not np.array_equal(per_image.confidence, per_image.raw_confidence):
        results |= _calibration("_before", per_image.raw_confidence, per_image)
    results["classes"] = class_results(per_image, classes, z)
    results["confusion"] = results["confused_pairs"] = None
    if len(classes) <= _MOST_CLASSES:
        confusion = confusion_matrix(per_image, len(classes))
        results["confusion"] = confusion.tolist()
        results["confused_pairs"] = confused_pairs(confusion, classes)
    return cast(Results, results)


def _balanced_accuracy(
    per_image: PerImageResults, classes: int, z: float
) -> dict[str, float | None]:
    right = per_image.labels == per_image.predicted
    images = np.bincount(per_image.labels, minlength=classes)
    hits = np.bincount(per_image.labels[right], minlength=classes)
    counted = [(int(hit), int(n)) for hit, n in zip(hits, images, strict=True) if n]
    values = mean_share(counted, z) if counted else (None, None, None)
    ends = ("", "_low", "_high")
    return {f"balanced_accuracy{end}": value for end, value in zip(ends, values, strict=True)}


def _calibration(
    suffix: str, confidence: NDArray[np.float32], per_image: PerImageResults
) -> dict[str, Any]:
    bins = calibration_bins(confidence, per_image.labels == per_image.predicted)
    error = expected_calibration_error(bins, len(per_image))
    return {f"expected_calibration_error{suffix}": error, f"calibration{suffix}": bins}


def share(name: str, successes: int, count: int, z: float = Z_95) -> dict[str, float | None]:
    """A share with its interval, at 95% by default, under name, name_low and name_high."""
    if count == 0:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    low, high = wilson(successes, count, z)
    return {name: successes / count, f"{name}_low": low, f"{name}_high": high}


def tta_results(per_image: PerImageResults, tta: str, z: float = Z_95) -> TtaResult:
    """The accuracy where probabilities are means over the views of each image."""
    right = int((per_image.labels == per_image.predicted).sum())
    accuracy = share("tta_accuracy", right, len(per_image), z)
    return cast(TtaResult, {"tta": tta, "tta_images": len(per_image), **accuracy})


def confusion_matrix(per_image: PerImageResults, classes: int) -> NDArray[np.int64]:
    """Counts (K, K): rows are labels, columns predictions."""
    cells = per_image.labels * classes + per_image.predicted
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_results(
    per_image: PerImageResults, classes: Sequence[str], z: float = Z_95
) -> list[ClassResult]:
    """Recall, precision, one-against-the-rest accuracy and F1 of each class."""
    count, total = len(classes), len(per_image)
    right = per_image.labels == per_image.predicted
    true = np.bincount(per_image.labels[right], minlength=count)
    images = np.bincount(per_image.labels, minlength=count)
    predicted = np.bincount(per_image.predicted, minlength=count)
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(classes):
        hits, present, said = int(true[number]), int(images[number]), int(predicted[number])
        rows.append(
            {
                "name": name,
                "images": present,
                "predicted": said,
                **share("recall", hits, present, z),
                **share("precision", hits, said, z),
                **share("accuracy", total - present - said + 2 * hits, total, z),
                "f1": 2 * hits / (present + said) if present and said else None,
            }
        )
    return cast(list[ClassResult], rows)


def calibration_bins(
    confidence: NDArray[np.float32], right: NDArray[np.bool_]
) -> list[CalibrationBin]:
    """Mean confidence and accuracy of images (n,) in 15 bins of equal width of the confidence."""
    place = np.clip(np.ceil(confidence * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    images = np.bincount(place, minlength=_BINS)
    claimed = np.bincount(place, confidence.astype(np.float64), minlength=_BINS)
    hits = np.bincount(place, right, minlength=_BINS)
    return [
        {
            "low": number / _BINS,
            "high": (number + 1) / _BINS,
            "images": int(images[number]),
            "confidence": float(claimed[number] / images[number]) if images[number] else None,
            "accuracy": float(hits[number] / images[number]) if images[number] else None,
        }
        for number in range(_BINS)
    ]


def expected_calibration_error(bins: Sequence[CalibrationBin], images: int) -> float | None:
    """The mean gap between confidence and accuracy, bins weighted by their images."""
    if images == 0:
        return None
    gaps = (
        row["images"] * abs(row["confidence"] - row["accuracy"])
        for row in bins
        if row["confidence"] is not None and row["accuracy"] is not None
    )
    return float(sum(gaps) / images)
