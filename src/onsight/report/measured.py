"""Prepare the measurements in a report: classes, confusions, epochs, calibration and time."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onsight.evaluation.results import (
    CalibrationBin,
    ClassResult,
    EpochRow,
    MemberResult,
    Results,
    sort_by_recall,
)
from onsight.report import figures
from onsight.report.run_files import Row, read_csv
from onsight.report.sentences import (
    calibration_sentence,
    class_difference_sentences,
    confidence_sentence,
    is_below_average,
    learning_curve_sentence,
    out_of_distribution_sentence,
)

_MAX_CLASS_ROWS, _WORST_ROWS = 200, 50  # with more classes, only the worst are shown
_MAX_TABLE_CLASSES = 25  # show the confusion matrix of up to this many classes as a table
_MAX_IMAGE_CLASSES = 200  # and of up to this many as an image


# --- Classes ---


@dataclass(frozen=True)
class ClassTable:
    """The results by class."""

    rows: list[ClassResult]  # worst first, perhaps not all
    total: int
    below: set[str]  # names of the classes significantly below the overall accuracy
    floor: float  # lower end of the interval scale
    train_images: int
    validation_images: int
    differences: list[str]  # sentences on whether the classes differ by more than chance


def class_table(results: Results, classes: Sequence[ClassResult]) -> ClassTable | None:
    """Return the table of the classes, or None without results by class."""
    if not classes:
        return None
    accuracy, ranked = results["accuracy"], sort_by_recall(classes)
    shown = ranked if len(classes) <= _MAX_CLASS_ROWS else ranked[:_WORST_ROWS]
    lows = [row["recall_low"] for row in shown if row["recall_low"] is not None]
    return ClassTable(
        rows=shown,
        total=len(classes),
        below={row["name"] for row in classes if is_below_average(row, accuracy)},
        floor=math.floor(min(lows, default=0.0) * 10) / 10,
        train_images=sum(row["train_images"] or 0 for row in classes),
        validation_images=sum(row["validation_images"] or 0 for row in classes),
        differences=class_difference_sentences(ranked, accuracy, results["images"]),
    )


# --- Confusions ---


@dataclass(frozen=True)
class Confusion:
    """Images of one class predicted as another."""

    true: str
    predicted: str
    count: int
    images: int  # all images of the true class


@dataclass(frozen=True)
class Confusions:
    """The most frequent confusions."""

    rows: list[Confusion]
    total: int  # pairs of classes with a confusion
    mistakes: int  # misclassified images


@dataclass(frozen=True)
class Matrix:
    """The confusion matrix as table rows, or as an SVG, or neither for too many classes."""

    names: list[str]
    rows: list[list[int]] = field(default_factory=list)
    svg: str = ""

    @property
    def long(self) -> bool:
        """True if the names are too long to stand above their columns."""
        return max(map(len, self.names)) > 3


def frequent_confusions(
    run: Path, confusion: list[list[int]] | None, classes: Sequence[ClassResult]
) -> Confusions | None:
    """Return the most frequent confusions, from predictions.csv if no matrix was saved."""
    if confusion is not None:
        counts = _count_in_matrix(confusion, [row["name"] for row in classes])
    else:
        predictions = read_csv(run / "predictions.csv")
        if predictions is None:
            return None
        counts = _count_in_predictions(predictions)
    few, some = len(classes) <= _MAX_TABLE_CLASSES, len(classes) <= _MAX_IMAGE_CLASSES
    limit = 10 if few else 20 if some else 30
    images = {row["name"]: row["images"] for row in classes}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    rows = [
        Confusion(true, predicted, count, images.get(true) or 0)
        for (true, predicted), count in ranked[:limit]
    ]
    return Confusions(rows, len(ranked), sum(counts.values()))


def confusion_matrix(
    confusion: list[list[int]] | None, classes: Sequence[ClassResult]
) -> Matrix | None:
    """Return the matrix, drawn as the number of classes permits, or None without images."""
    if not confusion or not np.any(confusion):
        return None
    names = [row["name"] for row in classes]
    if len(names) <= _MAX_TABLE_CLASSES:
        return Matrix(names, rows=confusion)
    if len(names) <= _MAX_IMAGE_CLASSES:
        return Matrix(names, svg=figures.confusion_image(confusion, names))
    return Matrix(names)


def _count_in_matrix(confusion: list[list[int]], names: list[str]) -> dict[tuple[str, str], int]:
    matrix = np.array(confusion)
    np.fill_diagonal(matrix, 0)
    return {(names[i], names[j]): int(matrix[i, j]) for i, j in np.argwhere(matrix > 0).tolist()}


def _count_in_predictions(predictions: list[Row]) -> Counter[tuple[str, str]]:
    labels = ((row["label"], row["predicted"]) for row in predictions)
    return Counter((a, b) for a, b in labels if a is not None and b is not None and a != b)


# --- Epochs ---


@dataclass(frozen=True)
class TrainingCurves:
    """The epochs of a run."""

    figures: list[tuple[str, str]]  # title and SVG
    epochs: list[EpochRow]
    overfit: EpochRow | None  # the epoch at which overfitting began
    best: EpochRow | None  # the epoch whose model was kept


def training_curves(epochs: list[EpochRow] | None, best_epoch: int | None) -> TrainingCurves | None:
    """Draw the epochs, or return None if none were recorded."""
    if not epochs:
        return None
    drawn = [
        ("Loss", figures.loss_curve(epochs)),
        ("Validation accuracy", figures.accuracy_curve(epochs)),
        ("Learning rate", figures.learning_rate_curve(epochs)),
    ]
    best = next((row for row in epochs if row["epoch"] == best_epoch), None)
    return TrainingCurves(drawn, epochs, _find_overfitting(epochs), best)


@dataclass(frozen=True)
class TrainedMembers:
    """The models that a run trained, of which its model consists."""

    rows: list[MemberResult]
    main: str  # the one with the largest weight
    figure: str  # accuracy over time


def trained_members(
    results: Results, histories: Mapping[str, list[EpochRow] | None]
) -> TrainedMembers | None:
    """Return the models of a run that trained several, or None."""
    rows = results["members"]
    if not rows:
        return None
    main = max(rows, key=lambda row: row["weight"])["name"]
    epochs = {row["name"]: histories.get(row["name"]) or [] for row in rows}
    return TrainedMembers(rows, main, figures.member_curves(epochs))


def _find_overfitting(epochs: list[EpochRow]) -> EpochRow | None:
    """Return the epoch with the lowest validation loss if the loss clearly rose after it."""
    losses = [(loss, row) for row in epochs if (loss := row["validation_loss"]) is not None]
    if not losses:
        return None
    lowest, row = min(losses, key=lambda pair: pair[0])
    return row if losses[-1][0] > 1.05 * lowest else None


def learning_curve_figure(results: Results) -> tuple[str, str] | None:
    """Return a sentence and an SVG on the benefit of more images, or None if it is not known."""
    curve = results.get("learning_curve")
    return (learning_curve_sentence(curve), figures.learning_curve(curve)) if curve else None


# --- Calibration ---


class MeanConfidence(NamedTuple):
    """Mean confidence and accuracy over the same images."""

    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """Confidence against accuracy, on average and in bins."""

    svg: str
    bins: list[CalibrationBin]
    mean: MeanConfidence
    verdict: str  # whether the two match
    error: str  # a sentence on the expected calibration error and the temperature
    out_of_distribution: str  # a sentence on the detector, or empty


def calibration(results: Results) -> Calibration | None:
    """Compare confidence with accuracy, or return None without images."""
    mean = mean_confidence(results)
    if mean is None:
        return None
    bins = [row for row in results["calibration"] if row["images"]]
    measured = results["expected_calibration_error"] is not None
    return Calibration(
        svg=figures.calibration_diagram(bins, results.get("calibration_before") or []),
        bins=bins,
        mean=mean,
        verdict=confidence_sentence(mean.confidence, mean.accuracy, results),
        error=calibration_sentence(results) if measured else "",
        out_of_distribution=out_of_distribution_sentence(results),
    )


def mean_confidence(results: Results) -> MeanConfidence | None:
    """Return the mean confidence and accuracy over all bins, or None without images."""
    bins = [row for row in results["calibration"] or [] if row["images"]]
    n = sum(row["images"] for row in bins)
    if not n:
        return None
    confidence = sum(row["images"] * (row["confidence"] or 0) for row in bins) / n
    accuracy = sum(row["images"] * (row["accuracy"] or 0) for row in bins) / n
    return MeanConfidence(n, confidence, accuracy)


# --- Time ---


def phase_times(results: Results) -> list[tuple[str, float, float]]:
    """Return the name, the seconds and the share of each phase, longest first.

    What belongs to no phase is included.
    """
    seconds = dict(results["phases"] or {})
    total = max(sum(seconds.values()), results["seconds"] or 0.0)
    rest = total - sum(seconds.values())
    if total and rest > 0.01 * total:
        seconds["everything else"] = rest
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return [(name, value, value / total) for name, value in ranked if total]
