"""What was measured: the classes, the epochs, calibration and time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onsight.evaluation.results import (
    CalibrationBin,
    ClassResult,
    EpochRow,
    Results,
    worst_first,
)
from onsight.report import figures
from onsight.report.sentences import (
    clearly_below,
    curve_sentence,
    noise_sentences,
    out_of_distribution_sentence,
    temperature_sentence,
    trust,
)

_ALL_ROWS, _WORST_ROWS = 200, 50  # of more classes than the first, only the worst are shown


@dataclass(frozen=True)
class ClassTable:
    """The classes, worst first.

    below: names of those clearly below the overall accuracy; floor: where the scale of the
    intervals begins; noise: sentences on whether chance explains how the classes differ.
    """

    rows: list[ClassResult]
    total: int
    below: set[str]
    floor: float
    train_images: int
    validation_images: int
    noise: list[str]


@dataclass(frozen=True)
class Curves:
    """The epochs as figures (title, SVG) and rows; the one kept, and where overfitting began."""

    figures: list[tuple[str, str]]
    epochs: list[EpochRow]
    overfit: EpochRow | None
    best: EpochRow | None


class MeanConfidence(NamedTuple):
    """The mean confidence (claimed) and the share that was right, of so many images."""

    images: int
    claimed: float
    right: float


@dataclass(frozen=True)
class Calibration:
    """How confident it was (claimed) against how often it was right, on average and in bins.

    temperature: a sentence on what was done about it, or empty; unlike: one on what tells unlike
    images, or empty.
    """

    svg: str
    bins: list[CalibrationBin]
    images: int
    claimed: float
    right: float
    verdict: str
    temperature: str
    out_of_distribution: str


@dataclass(frozen=True)
class More:
    """What more training images would bring."""

    svg: str
    sentence: str


@dataclass(frozen=True)
class Phase:
    """A part of the run's time; share: of all of it."""

    name: str
    seconds: float
    share: float


def class_table(results: Results, classes: Sequence[ClassResult]) -> ClassTable | None:
    """The table of the classes; None when there are no results by class."""
    if not classes:
        return None
    accuracy, ranked = results["accuracy"], worst_first(classes)
    shown = ranked if len(classes) <= _ALL_ROWS else ranked[:_WORST_ROWS]
    lows = [row["recall_low"] for row in shown if row["recall_low"] is not None]
    return ClassTable(
        rows=shown,
        total=len(classes),
        below={row["name"] for row in classes if clearly_below(row, accuracy)},
        floor=math.floor(min(lows, default=0.0) * 10) / 10,
        train_images=sum(row["train_images"] or 0 for row in classes),
        validation_images=sum(row["validation_images"] or 0 for row in classes),
        noise=noise_sentences(ranked, accuracy, results["images"]),
    )


def curves(epochs: list[EpochRow] | None, best_epoch: int | None) -> Curves | None:
    """The course of training; None when no epoch was recorded."""
    if not epochs:
        return None
    drawn = [
        ("Loss", figures.loss_curve(epochs)),
        ("Validation accuracy", figures.accuracy_curve(epochs)),
        ("Learning rate", figures.learning_rate_curve(epochs)),
    ]
    best = next((row for row in epochs if row["epoch"] == best_epoch), None)
    return Curves(drawn, epochs, _overfit(epochs), best)


def _overfit(epochs: list[EpochRow]) -> EpochRow | None:
    """The epoch of lowest validation loss, if the loss clearly rose after it."""
    judged = [(row["validation_loss"], row) for row in epochs]
    losses = [(loss, row) for loss, row in judged if loss is not None]
    if not losses:
        return None
    least, row = min(losses, key=lambda pair: pair[0])
    return row if losses[-1][0] > 1.05 * least else None


def calibration(results: Results) -> Calibration | None:
    """How confident it was against how right it was; None without images."""
    mean = mean_confidence(results)
    if mean is None:
        return None
    bins = [row for row in results["calibration"] if row["images"]]
    verdict = trust(mean.claimed, mean.right, results)
    svg = figures.calibration_diagram(bins, results.get("calibration_before") or [])
    said = temperature_sentence(results), out_of_distribution_sentence(results)
    return Calibration(svg, bins, *mean, verdict, *said)


def mean_confidence(results: Results) -> MeanConfidence | None:
    """How confident it was on average, and how right; None without images."""
    bins = [row for row in results["calibration"] or [] if row["images"]]
    n = sum(row["images"] for row in bins)
    if not n:
        return None
    claimed = sum(row["images"] * (row["confidence"] or 0) for row in bins) / n
    right = sum(row["images"] * (row["accuracy"] or 0) for row in bins) / n
    return MeanConfidence(n, claimed, right)


def more_images(results: Results) -> More | None:
    """What more training images would bring; None if that is not known."""
    curve = results.get("learning_curve")
    return More(figures.learning_curve(curve), curve_sentence(curve)) if curve else None


def phases(results: Results) -> list[Phase]:
    """Where the time went, longest first, including what belongs to no phase."""
    seconds = dict(results["phases"] or {})
    total = max(sum(seconds.values()), results["seconds"] or 0.0)
    rest = total - sum(seconds.values())
    if total and rest > 0.01 * total:
        seconds["everything else"] = rest
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return [Phase(name, value, value / total) for name, value in ranked if total]
