"""Heat maps of predictions as PNG files: the picture, and beside it where its class was seen.

H height, W width, C channels.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from onsight.data.decode import decode
from onsight.data.pillow_pixels import Pixels
from onsight.data.sources.read_file import read_regular_file
from onsight.errors import OutputError, PictureError
from onsight.files import check_writable, write_atomically
from onsight.heatmaps.heat import heat_maps, require_captum
from onsight.heatmaps.overlay import Heat, enlarged, on_original, overlay
from onsight.inference.pictures import read_picture
from onsight.inference.predictor import Prediction, Predictor
from onsight.report.canvas import Canvas, Words
from onsight.words import percent, shortened

_AT_ONCE = 16  # pictures
_SIDE, _GAP, _LINE = 448, 16, 22  # pixels
_NAME, _STEM = 60, 60  # characters
_INK, _QUIET = "#1b1b1b", "#6b6b6b"


@dataclass(frozen=True)
class Predicted:
    """A picture with its prediction.

    number: its place among the inputs, from 1; pixels: uint8 (H, W, C), as the model was given.
    """

    number: int
    path: str
    pixels: Pixels
    predicted: str
    probability: float


def check_heat_folder(folder: Path) -> None:
    """Raise OutputError for a folder that is not empty, DiskError, or ConfigError for captum."""
    require_captum()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"--heatmap makes a new folder, but {folder} exists: choose another")
    check_writable(folder / "000001.png")


def with_pixels(predictions: Iterable[Prediction], predictor: Predictor) -> Iterator[Predicted]:
    """The predictions of files that could be used, each read again as the model was given it."""
    for number, one in enumerate(predictions, 1):
        if one.predicted is None or one.probability is None:
            continue
        try:
            pixels = read_picture(one.path, predictor.format)
        except PictureError:  # changed since it was predicted
            continue
        yield Predicted(number, one.path, pixels, one.predicted, one.probability)


def save_heat_maps(folder: Path, pictures: Iterable[Predicted], predictor: Predictor) -> int:
    """Write a PNG file for each picture, such as 000001-name.png, and return how many.

    The number is the picture's place among the inputs, the name its file's without what is no
    letter, digit, dot or hyphen. Raises ModelError for a network without heat maps, DiskError.
    """
    count, rest = 0, iter(pictures)
    while some := list(islice(rest, _AT_ONCE)):
        images = torch.from_numpy(np.stack([one.pixels for one in some]))
        classes = torch.tensor([predictor.classes.index(one.predicted) for one in some])
        for one, heat in zip(some, heat_maps(predictor.classifier, images, classes), strict=True):
            stem = re.sub(r"[^\w.-]+", "_", Path(os.path.basename(one.path)).stem)[:_STEM]
            write_atomically(folder / f"{one.number:06d}-{stem}.png", _page(one, heat, predictor))
            count += 1
    return count


def _page(one: Predicted, heat: Heat, predictor: Predictor) -> bytes:
    """The picture, its heat and what was predicted, as a PNG file."""
    pixels = _original(one, predictor)
    pixels, heat = enlarged(
        pixels, on_original(heat, pixels.shape[:2], predictor.format.fit), _SIDE // 2
    )
    height, width = heat.shape
    wide = max(2 * width + _GAP, _SIDE)
    canvas = Canvas(wide + 2 * _GAP, height + 3 * _GAP + 2 * _LINE)
    canvas.picture(_GAP, _GAP, np.broadcast_to(pixels, (*heat.shape, 3)))
    canvas.picture(2 * _GAP + width, _GAP, overlay(pixels, heat))
    said = f"{shortened(one.predicted, _NAME // 2)} {percent(one.probability)}"
    canvas.write(_GAP, height + 2 * _GAP, Words(said, _INK, 11, "bold"))
    name = shortened(os.path.basename(one.path), _NAME)
    canvas.write(_GAP, height + 2 * _GAP + _LINE, Words(name, _QUIET, 8.5))
    return canvas.as_png()


def _original(one: Predicted, predictor: Predictor) -> Pixels:
    """The picture in its own shape, at most 448 pixels long."""
    try:
        data = read_regular_file(one.path)
        pixels = decode(
            data, predictor.format.background, predictor.format.pixel_limit, (_SIDE, _SIDE)
        )
    except PictureError:  # changed since it was read
        return one.pixels
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((_SIDE, _SIDE))
    return np.asarray(image, np.uint8).reshape(image.height, image.width, pixels.shape[2])
