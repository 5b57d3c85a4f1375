"""The pictures a report shows: right answers, and the worst mistakes."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.pack import Pack
from onsight.evaluation.outcome import Outcome
from onsight.files import write_atomically, write_json

_MOST = 40  # pictures of each kind


def save_gallery(folder: Path, outcome: Outcome, pack: Pack) -> None:
    """Write the pictures as PNG files, and gallery.json that says what they are.

    Pictures are numbered by digest, so the first right answers are a fair sample.
    """
    right = np.flatnonzero(outcome.labels == outcome.predicted)[:_MOST]
    wrong = np.flatnonzero(outcome.labels != outcome.predicted)
    wrong = wrong[np.argsort(-outcome.losses[wrong], kind="stable")][:_MOST]
    write_json(
        folder / "gallery.json",
        {
            "right": _save_all(folder, "right", right, outcome, pack),
            "wrong": _save_all(folder, "wrong", wrong, outcome, pack),
        },
    )


def _save_all(
    folder: Path, kind: str, places: NDArray[np.int64], outcome: Outcome, pack: Pack
) -> list[dict[str, Any]]:
    return [
        _save(folder / f"{kind}-{number:02d}.png", int(place), outcome, pack)
        for number, place in enumerate(places)
    ]


def _save(path: Path, place: int, outcome: Outcome, pack: Pack) -> dict[str, Any]:
    picture = int(outcome.ids[place])
    pixels = pack.pixels[pack.rows[picture]]
    data = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(data, "PNG")
    write_atomically(path, data.getvalue())
    return {
        "file": path.name,
        "path": pack.index.locators[picture],
        "label": pack.index.classes[outcome.labels[place]],
        "predicted": pack.index.classes[outcome.predicted[place]],
        "probability": float(outcome.confidence[place]),
        "loss": float(outcome.losses[place]),
    }
