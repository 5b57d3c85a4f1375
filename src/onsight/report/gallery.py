"""The pictures that a report shows: correct predictions and the worst mistakes."""

import io
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.pack import Pack
from onsight.evaluation.per_image import PerImageResults
from onsight.files import write_atomically, write_json

_MOST = 40  # pictures of each kind


class GalleryItem(TypedDict):
    """A picture in gallery.json; path: where it came from; probability: of the predicted class."""

    file: str
    path: str
    label: str
    predicted: str
    probability: float
    loss: float


def save_gallery(folder: Path, per_image: PerImageResults, pack: Pack) -> None:
    """Write the pictures as PNG files, and gallery.json, which describes them.

    Pictures are numbered by digest, so the first correct predictions are a fair sample.
    """
    right = np.flatnonzero(per_image.labels == per_image.predicted)[:_MOST]
    wrong = np.flatnonzero(per_image.labels != per_image.predicted)
    wrong = wrong[np.argsort(-per_image.losses[wrong], kind="stable")][:_MOST]
    write_json(
        folder / "gallery.json",
        {
            "right": _save_all(folder, "right", right, per_image, pack),
            "wrong": _save_all(folder, "wrong", wrong, per_image, pack),
        },
    )


def _save_all(
    folder: Path, kind: str, places: NDArray[np.int64], per_image: PerImageResults, pack: Pack
) -> list[GalleryItem]:
    return [
        _save(folder / f"{kind}-{number:02d}.png", int(place), per_image, pack)
        for number, place in enumerate(places)
    ]


def _save(path: Path, place: int, per_image: PerImageResults, pack: Pack) -> GalleryItem:
    picture = int(per_image.ids[place])
    pixels = pack.pixels[pack.rows[picture]]
    data = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(data, "PNG")
    write_atomically(path, data.getvalue())
    return {
        "file": path.name,
        "path": pack.index.locators[picture],
        "label": pack.index.classes[per_image.labels[place]],
        "predicted": pack.index.classes[per_image.predicted[place]],
        "probability": float(per_image.confidence[place]),
        "loss": float(per_image.losses[place]),
    }
