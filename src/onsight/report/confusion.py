"""What is taken for what: the commonest confusions, and the whole matrix where it fits."""

from collections import Counter
from pathlib import Path

import numpy as np

from onsight.report import figures
from onsight.report.runfiles import Row, read_csv

_TABLE_CLASSES, _IMAGE_CLASSES = 25, 200  # the most that a matrix shows as a table, as an image


def commonest_pairs(run: Path, confusion: list[list[int]] | None, classes: list[Row]) -> Row | None:
    """The commonest mistakes; from predictions.csv when no matrix was kept."""
    if confusion is not None:
        counts = _matrix_pairs(confusion, [row["name"] for row in classes])
    else:
        predictions = read_csv(run / "predictions.csv")
        if predictions is None:
            return None
        counts = _predicted_pairs(predictions)
    limit = 10 if len(classes) <= _TABLE_CLASSES else 20 if len(classes) <= _IMAGE_CLASSES else 30
    images = {row["name"]: row["images"] for row in classes}
    ranked = sorted(counts.items(), key=lambda item: -item[1])
    rows = [
        {"true": true, "taken": taken, "count": count, "images": images.get(true) or 0}
        for (true, taken), count in ranked[:limit]
    ]
    return {"rows": rows, "total": len(ranked), "mistakes": sum(counts.values())}


def _matrix_pairs(confusion: list[list[int]], names: list[str]) -> dict[tuple[str, str], int]:
    matrix = np.array(confusion)
    np.fill_diagonal(matrix, 0)
    return {(names[i], names[j]): int(matrix[i, j]) for i, j in np.argwhere(matrix > 0).tolist()}


def _predicted_pairs(predictions: list[Row]) -> Counter[tuple[str, str]]:
    labels = ((row["label"], row["predicted"]) for row in predictions)
    return Counter((a, b) for a, b in labels if a is not None and b is not None and a != b)


def whole_matrix(confusion: list[list[int]] | None, classes: list[Row]) -> Row | None:
    """The matrix as a table, as an image or, of too many classes, not at all."""
    if not confusion or not np.any(confusion):
        return None
    names = [row["name"] for row in classes]
    section: Row = {"kind": "none", "names": names, "long": max(map(len, names)) > 3}
    if len(names) <= _TABLE_CLASSES:
        section |= {"kind": "table", "rows": _matrix_rows(confusion, names)}
    elif len(names) <= _IMAGE_CLASSES:
        section |= {"kind": "image", "svg": figures.confusion_image(confusion, names)}
    return section


def _matrix_rows(confusion: list[list[int]], names: list[str]) -> list[Row]:
    return [
        {
            "name": names[i],
            "images": sum(counts),
            "cells": [_cell(count, sum(counts), i == j) for j, count in enumerate(counts)],
        }
        for i, counts in enumerate(confusion)
    ]


def _cell(count: int, total: int, right: bool) -> Row:
    share = count / total if total else 0.0
    # Mistakes are rare: their square root makes 1% visible beside 90%.
    return {
        "count": count,
        "share": share,
        "strength": share if right else share**0.5,
        "right": right,
    }
