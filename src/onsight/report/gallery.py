"""The images that a report shows: correct predictions and the worst mistakes."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.pack import Pack
from onsight.evaluation.predictions import PredictionTable
from onsight.files import write_atomically, write_json
from onsight.heatmaps.overlay import enlarge, overlay

_MOST = 40  # images of each kind
_SMALL_SIDE = 64  # pixels of a lookalike's longer side at most
_HEAT_SIDE = 160  # pixels of the longer side of a heat map at least
_EDGE = 1  # pixels of white beside each lookalike


class NearItem(TypedDict):
    """A training image in gallery.json that looks like a mistake; similarity: -1 to 1."""

    path: str
    label: str
    similarity: float


class GalleryItem(TypedDict):
    """An image in gallery.json; path: where it came from; probability: of the predicted class.

    near: the training images that a mistake looks most like, if they were searched; near_file:
    these side by side; heat_file: where a mistake speaks for the predicted class, if computed.
    """

    heat_file: NotRequired[str]
    near: NotRequired[list[NearItem]]
    near_file: NotRequired[str]
    file: str
    path: str
    label: str
    predicted: str
    probability: float
    loss: float


@dataclass(frozen=True)
class Lookalikes:
    """The training images that each of m mistakes looks most like, most similar first.

    images: int64 (m, k) image numbers; similarities: float32 (m, k); searched: how many
    training images were compared, of how many; reason: why none were, if none were.
    """

    images: NDArray[np.int64]
    similarities: NDArray[np.float32]
    searched: int
    of: int
    reason: str = ""


@dataclass(frozen=True)
class MistakesHeat:
    """Where the first m of the worst mistakes speak for the class that was predicted.

    heats: float32 (m, H, W), 0 to 1; reason: why there are none or fewer, if so.
    """

    heats: NDArray[np.float32]
    reason: str = ""


def worst_mistakes(per_image: PredictionTable) -> NDArray[np.int64]:
    """The places of the mistakes that the gallery shows, the largest loss first."""
    wrong = np.flatnonzero(per_image.labels != per_image.predicted)
    return wrong[np.argsort(-per_image.losses[wrong], kind="stable")][:_MOST]


def save_gallery(
    folder: Path,
    per_image: PredictionTable,
    pack: Pack,
    lookalikes: Lookalikes,
    heat: MistakesHeat,
) -> None:
    """Write the images as PNG files, and gallery.json, which describes them.

    Images are numbered by digest, so the first correct predictions are a fair sample.
    lookalikes, heat: of the worst mistakes, in their order.
    """
    right = np.flatnonzero(per_image.labels == per_image.predicted)[:_MOST]
    mistakes = worst_mistakes(per_image)
    wrong = _save_all(folder, "wrong", mistakes, per_image, pack)
    for number, (item, images, similarities) in enumerate(
        zip(wrong, lookalikes.images, lookalikes.similarities, strict=False)
    ):
        item["near"] = [
            _near(int(image), float(similarity), pack)
            for image, similarity in zip(images, similarities, strict=True)
        ]
        item["near_file"] = f"near-{number:02d}.png"
        _write_png(folder / item["near_file"], _side_by_side(images.tolist(), pack))
    for number, (item, image, values) in enumerate(
        zip(wrong, per_image.ids[mistakes], heat.heats, strict=False)
    ):
        item["heat_file"] = f"heat-{number:02d}.png"
        drawn = overlay(*enlarge(pack.pixels[pack.rows[image]], values, _HEAT_SIDE))
        _write_png(folder / item["heat_file"], Image.fromarray(drawn))
    write_json(
        folder / "gallery.json",
        {
            "right": _save_all(folder, "right", right, per_image, pack),
            "wrong": wrong,
            "lookalikes": {
                "searched": lookalikes.searched,
                "of": lookalikes.of,
                "reason": lookalikes.reason,
            },
            "heat": {"drawn": len(heat.heats), "of": len(wrong), "reason": heat.reason},
        },
    )


def _save_all(
    folder: Path, kind: str, places: NDArray[np.int64], per_image: PredictionTable, pack: Pack
) -> list[GalleryItem]:
    return [
        _save(folder / f"{kind}-{number:02d}.png", int(place), per_image, pack)
        for number, place in enumerate(places)
    ]


def _save(path: Path, place: int, per_image: PredictionTable, pack: Pack) -> GalleryItem:
    image = int(per_image.ids[place])
    _write_png(path, _to_pillow(image, pack))
    return {
        "file": path.name,
        "path": pack.index.locators[image],
        "label": pack.index.classes[per_image.labels[place]],
        "predicted": pack.index.classes[per_image.predicted[place]],
        "probability": float(per_image.confidence[place]),
        "loss": float(per_image.losses[place]),
    }


def _near(image: int, similarity: float, pack: Pack) -> NearItem:
    return {
        "path": pack.index.locators[image],
        "label": pack.index.classes[pack.index.labels[image]],
        "similarity": similarity,
    }


def _side_by_side(images: Sequence[int], pack: Pack) -> Image.Image:
    """The images, made small, in equal columns."""
    thumbnails = [_to_pillow(image, pack) for image in images]
    for thumbnail in thumbnails:
        thumbnail.thumbnail((_SMALL_SIDE, _SMALL_SIDE))
    width, height = thumbnails[0].size
    strip = Image.new(thumbnails[0].mode, (len(thumbnails) * (width + 2 * _EDGE), height), "white")
    for column, thumbnail in enumerate(thumbnails):
        strip.paste(thumbnail, (column * (width + 2 * _EDGE) + _EDGE, 0))
    return strip


def _to_pillow(image: int, pack: Pack) -> Image.Image:
    pixels = pack.pixels[pack.rows[image]]
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _write_png(path: Path, image: Image.Image) -> None:
    data = io.BytesIO()
    image.save(data, "PNG")
    write_atomically(path, data.getvalue())
