"""What was measured: the classes, the course of training, calibration and time."""

import math

from onsight.report import figures
from onsight.report.runfiles import Row, Said
from onsight.report.sentences import clearly_below, noise_sentences, trust

_ALL_ROWS, _WORST_ROWS = 200, 50  # of more classes than the first, only the worst are shown


def class_table(results: Row, classes: list[Row]) -> Row | None:
    """The classes, worst first, and whether chance explains how they differ."""
    if not classes:
        return None
    accuracy = results["accuracy"]
    marked: list[Row] = [Said(row | {"below": clearly_below(row, accuracy)}) for row in classes]
    worst_first = sorted(marked, key=lambda row: 2.0 if row["recall"] is None else row["recall"])
    shown = worst_first if len(classes) <= _ALL_ROWS else worst_first[:_WORST_ROWS]
    lows = [row["recall_low"] for row in shown if row["recall_low"] is not None]
    return {
        "rows": shown,
        "total": len(classes),
        "floor": math.floor(min(lows, default=0.0) * 10) / 10,
        "train_images": sum(row["train_images"] or 0 for row in classes),
        "validation_images": sum(row["validation_images"] or 0 for row in classes),
        "noise": noise_sentences(worst_first, accuracy, results["images"]),
    }


def curves(epochs: list[Row] | None, best_epoch: int | None) -> Row | None:
    """The course of training: figures, the epoch kept, and where it began to learn by heart."""
    if not epochs:
        return None
    return {
        "figures": [
            ("Loss", figures.loss_curve(epochs)),
            ("Validation accuracy", figures.accuracy_curve(epochs)),
            ("Learning rate", figures.learning_rate_curve(epochs)),
        ],
        "epochs": epochs,
        "overfit": _overfit(epochs),
        "best": next((row for row in epochs if row["epoch"] == best_epoch), None),
    }


def _overfit(epochs: list[Row]) -> Row | None:
    """The epoch of least validation loss, when the loss clearly rose after it."""
    judged = [row for row in epochs if row["validation_loss"] is not None]
    if not judged:
        return None
    least = min(judged, key=lambda row: float(row["validation_loss"]))
    return least if judged[-1]["validation_loss"] > 1.05 * least["validation_loss"] else None


def calibration(results: Row) -> Row | None:
    """How sure it was against how right it was."""
    bins = [row for row in results["calibration"] or [] if row["images"]]
    n = sum(row["images"] for row in bins)
    if not n:
        return None
    claimed = sum(row["images"] * row["confidence"] for row in bins) / n
    right = sum(row["images"] * row["accuracy"] for row in bins) / n
    return {
        "svg": figures.calibration_diagram(bins),
        "bins": bins,
        "images": n,
        "claimed": claimed,
        "right": right,
        "verdict": trust(claimed, right, results),
    }


def phases(results: Row) -> list[Row]:
    """Where the time went, longest first, what no phase claims among them."""
    seconds: Row = dict(results["phases"] or {})
    total = max(sum(seconds.values()), results["seconds"] or 0.0)
    rest = total - sum(seconds.values())
    if total and rest > 0.01 * total:
        seconds["everything else"] = rest
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    return [
        {"name": name, "seconds": value, "share": value / total} for name, value in ranked if total
    ]
