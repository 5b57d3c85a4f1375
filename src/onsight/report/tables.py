"""The CSV files of a run: problems and predictions."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onsight.data.index import Problem
from onsight.data.pack import Pack
from onsight.evaluation.predictions import PredictionTable
from onsight.report.csv_table import write_csv


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Write every image that is not used, the stage that refused it, and why."""
    write_csv(path, Problem._fields, problems)


def write_predictions(
    path: Path,
    per_image: PredictionTable,
    pack: Pack,
    folds: NDArray[np.int8] | None = None,
) -> None:
    """Write every evaluated image: path, label, predicted class, its probability, digest.

    digest: 8 bytes in hexadecimal, which identify an image wherever it is kept; folds: the fold
    of every image by number, written as a column if given.
    """
    index = pack.index
    rows = (
        (
            index.locators[int(number)],
            index.classes[label],
            index.classes[predicted],
            f"{confidence:.6f}",
            digest_text(pack.digests[int(number)].tobytes()),
            *(() if folds is None else (folds[number],)),
        )
        for number, label, predicted, confidence in zip(
            per_image.ids, per_image.labels, per_image.predicted, per_image.confidence, strict=True
        )
    )
    header = ("path", "label", "predicted", "probability", "digest")
    write_csv(path, header if folds is None else (*header, "fold"), rows)


def digest_text(digest: bytes) -> str:
    """The first 8 bytes of an image's digest, as predictions.csv has them."""
    return digest[:8].hex()
