"""Which classes are taken for which: the most frequent mistakes, and the whole matrix."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from onsight.evaluation.results import ClassResult
from onsight.report import figures
from onsight.report.runfiles import Row, read_csv

_TABLE_CLASSES, _IMAGE_CLASSES = 25, 200  # the most that a matrix shows as a table, as an image


@dataclass(frozen=True)
class Pair:
    """Images of one class that were taken for another; images: all images of the class."""

    true: str
    taken: str
    count: int
    images: int


@dataclass(frozen=True)
class Pairs:
    """The most frequent mistakes; total: kinds of mistake, mistakes: images."""

    rows: list[Pair]
    total: int
    mistakes: int


@dataclass(frozen=True)
class Cell:
    """A cell of the matrix; share: of its row; strength: of its colour, 0 to 1."""

    count: int
    share: float
    strength: float
    right: bool


@dataclass(frozen=True)
class MatrixRow:
    """What the images of one class were taken for."""

    name: str
    images: int
    cells: list[Cell]


@dataclass(frozen=True)
class Matrix:
    """The confusion matrix as rows of a table, or as an SVG, or neither for too many classes."""

    names: list[str]
    rows: list[MatrixRow] = field(default_factory=list)
    svg: str = ""

    @property
    def long(self) -> bool:
        """Whether the names are too long to stand above their columns."""
        return max(map(len, self.names)) > 3


def commonest_pairs(
    run: Path, confusion: list[list[int]] | None, classes: Sequence[ClassResult]
) -> Pairs | None:
    """The most frequent mistakes; from predictions.csv when no matrix was kept."""
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
        Pair(true, taken, count, images.get(true) or 0) for (true, taken), count in ranked[:limit]
    ]
    return Pairs(rows, len(ranked), sum(counts.values()))


def _matrix_pairs(confusion: list[list[int]], names: list[str]) -> dict[tuple[str, str], int]:
    matrix = np.array(confusion)
    np.fill_diagonal(matrix, 0)
    return {(names[i], names[j]): int(matrix[i, j]) for i, j in np.argwhere(matrix > 0).tolist()}


def _predicted_pairs(predictions: list[Row]) -> Counter[tuple[str, str]]:
    labels = ((row["label"], row["predicted"]) for row in predictions)
    return Counter((a, b) for a, b in labels if a is not None and b is not None and a != b)


def whole_matrix(
    confusion: list[list[int]] | None, classes: Sequence[ClassResult]
) -> Matrix | None:
    """The matrix, drawn as the number of classes allows; None without images."""
    if not confusion or not np.any(confusion):
        return None
    names = [row["name"] for row in classes]
    if len(names) <= _TABLE_CLASSES:
        return Matrix(names, rows=_matrix_rows(confusion, names))
    if len(names) <= _IMAGE_CLASSES:
        return Matrix(names, svg=figures.confusion_image(confusion, names))
    return Matrix(names)


def _matrix_rows(confusion: list[list[int]], names: list[str]) -> list[MatrixRow]:
    return [
        MatrixRow(
            names[i],
            sum(counts),
            [_cell(count, sum(counts), i == j) for j, count in enumerate(counts)],
        )
        for i, counts in enumerate(confusion)
    ]


def _cell(count: int, total: int, right: bool) -> Cell:
    share = count / total if total else 0.0
    # Mistakes are rare: their square root makes 1% visible beside 90%.
    return Cell(count, share, share if right else share**0.5, right)
