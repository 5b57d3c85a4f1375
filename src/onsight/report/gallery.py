"""The images that a report shows: correct predictions and the worst mistakes.

`save_gallery` writes them into the run folder when a run ends; `load_gallery` embeds them in the
page whenever it is written.
"""

import io
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from onsight.data.pack import Pack
from onsight.data.pixels import to_pillow
from onsight.errors import DataError
from onsight.evaluation.predictions import PredictionTable
from onsight.files import write_atomically, write_json
from onsight.heatmaps.overlay import enlarge, overlay
from onsight.report.html_page import InlineImage, data_uri
from onsight.report.run_files import LenientDict, Row
from onsight.untrusted import read_bytes

GALLERY_FILE = "gallery/gallery.json"
_MAX_SHOWN = 40  # images of each kind
_MAX_LOOKALIKE_SIDE = 64  # pixels of the longer side
_MIN_HEAT_SIDE = 160  # pixels of the longer side
_EDGE = 1  # pixels of white beside each lookalike
_TINY_PIXELS = 112  # images up to this size stay crisp when enlarged
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class NearItem(TypedDict):
    """A training image in gallery.json that is similar to a mistake."""

    path: str
    label: str
    similarity: float  # -1 to 1


class GalleryItem(TypedDict):
    """An image in gallery.json. Only mistakes have heat maps and lookalikes."""

    file: str
    path: str  # path of the original in DATA
    label: str
    predicted: str
    probability: float  # probability of the predicted class
    loss: float
    heat_file: NotRequired[str]  # the regions that support the prediction
    near: NotRequired[list[NearItem]]  # the most similar training images
    near_file: NotRequired[str]  # the same images, side by side


@dataclass(frozen=True)
class Lookalikes:
    """The training images most similar to each of m mistakes, most similar first."""

    images: NDArray[np.int64]  # (m, k) image numbers
    similarities: NDArray[np.float32]  # (m, k)
    searched: int  # training images that were compared
    of: int  # training images in all
    reason: str = ""  # why none were compared


@dataclass(frozen=True)
class MistakesHeat:
    """The regions of the first m of the worst mistakes that support the prediction."""

    heats: NDArray[np.float32]  # (m, H, W), 0 to 1
    reason: str = ""  # why there are fewer than mistakes, or none


def worst_mistakes(per_image: PredictionTable) -> NDArray[np.int64]:
    """Return the rows of the mistakes that the gallery shows, the largest loss first."""
    wrong = np.flatnonzero(per_image.labels != per_image.predicted)
    return wrong[np.argsort(-per_image.losses[wrong], kind="stable")][:_MAX_SHOWN]


def save_gallery(
    folder: Path,
    per_image: PredictionTable,
    pack: Pack,
    lookalikes: Lookalikes,
    heat: MistakesHeat,
) -> None:
    """Write the images as PNG files, and gallery.json, which describes them.

    Images are ordered by digest, so the first correct predictions are a fair sample. Lookalikes
    and heat maps belong to the worst mistakes, in the same order.
    """
    right = np.flatnonzero(per_image.labels == per_image.predicted)[:_MAX_SHOWN]
    mistakes = worst_mistakes(per_image)
    wrong = _save_all(folder, "wrong", mistakes, per_image, pack)
    for index, (item, images, similarities) in enumerate(
        zip(wrong, lookalikes.images, lookalikes.similarities, strict=False)
    ):
        item["near"] = [
            {
                "path": pack.index.locators[image],
                "label": pack.index.classes[pack.index.labels[image]],
                "similarity": similarity,
            }
            for image, similarity in zip(images.tolist(), similarities.tolist(), strict=True)
        ]
        item["near_file"] = f"near-{index:02d}.png"
        _write_png(folder / item["near_file"], _side_by_side(images.tolist(), pack))
    for index, (item, image, values) in enumerate(
        zip(wrong, per_image.ids[mistakes], heat.heats, strict=False)
    ):
        item["heat_file"] = f"heat-{index:02d}.png"
        drawn = overlay(*enlarge(pack.pixels[pack.rows[image]], values, _MIN_HEAT_SIDE))
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


def load_gallery(run: Path, listing: Row | None) -> Row | None:
    """Return the images that gallery.json lists as wrong and right, embedded as data URIs.

    Its facts about lookalikes and heat maps are added, or None if it has none.
    """
    if listing is None:
        return None
    folder = (run / GALLERY_FILE).parent
    shown: set[Path] = set()
    images = {
        kind: [_embed_item(folder, item, shown) for item in listing.get(kind, [])[:_MAX_SHOWN]]
        for kind in ("wrong", "right")
    }
    return images | {name: listing.get(name) for name in ("lookalikes", "heat")}


def _save_all(
    folder: Path, kind: str, rows: NDArray[np.int64], per_image: PredictionTable, pack: Pack
) -> list[GalleryItem]:
    return [
        _save(folder / f"{kind}-{index:02d}.png", int(row), per_image, pack)
        for index, row in enumerate(rows)
    ]


def _save(path: Path, row: int, per_image: PredictionTable, pack: Pack) -> GalleryItem:
    image = int(per_image.ids[row])
    _write_png(path, _to_pillow(image, pack))
    return {
        "file": path.name,
        "path": pack.index.locators[image],
        "label": pack.index.classes[per_image.labels[row]],
        "predicted": pack.index.classes[per_image.predicted[row]],
        "probability": float(per_image.confidence[row]),
        "loss": float(per_image.losses[row]),
    }


def _side_by_side(images: Sequence[int], pack: Pack) -> Image.Image:
    thumbnails = [_to_pillow(image, pack) for image in images]
    for thumbnail in thumbnails:
        thumbnail.thumbnail((_MAX_LOOKALIKE_SIDE, _MAX_LOOKALIKE_SIDE))
    width, height = thumbnails[0].size
    strip = Image.new(thumbnails[0].mode, (len(thumbnails) * (width + 2 * _EDGE), height), "white")
    for column, thumbnail in enumerate(thumbnails):
        strip.paste(thumbnail, (column * (width + 2 * _EDGE) + _EDGE, 0))
    return strip


def _to_pillow(image: int, pack: Pack) -> Image.Image:
    return to_pillow(pack.pixels[pack.rows[image]])


def _write_png(path: Path, image: Image.Image) -> None:
    data = io.BytesIO()
    image.save(data, "PNG")
    write_atomically(path, data.getvalue())


def _embed_item(folder: Path, item: Row, shown: set[Path]) -> Row:
    extra_files = {"strip": item.get("near_file"), "heat": item.get("heat_file")}
    extra = {
        name: LenientDict(_embed_png(folder / Path(file).name, shown)._asdict()) if file else None
        for name, file in extra_files.items()
    }
    return LenientDict(item | _embed_png(folder / Path(item["file"]).name, shown)._asdict() | extra)


def _embed_png(path: Path, shown: set[Path]) -> InlineImage:
    """Embed a PNG file; its uri is empty if the file is missing, broken or shown already.

    shown: the files in the page, so that a listing which repeats one cannot make the page huge.
    """
    data = b""
    if path not in shown:
        shown.add(path)
        with suppress(DataError):
            data = read_bytes(path)
    if len(data) < 24 or not data.startswith(_PNG_SIGNATURE):
        return InlineImage("", tiny=False)
    width, height = struct.unpack(">II", data[16:24])
    return InlineImage(data_uri(data, "png"), max(width, height) <= _TINY_PIXELS)
