"""Heat maps of predictions as PNG files: the image, and beside it where its class was seen.

H height, W width, C channels.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat
from onsight.data.packing import prepare_image
from onsight.data.pillow_pixels import Pixels
from onsight.errors import ImageError, OutputError
from onsight.files import check_output, write_atomically
from onsight.heatmaps.heat import heat_maps, require_captum
from onsight.heatmaps.overlay import Heat, enlarged, on_original, overlay
from onsight.inference.inputs.input import Input
from onsight.inference.predictor import Prediction, Predictor
from onsight.report.canvas import Canvas, Words
from onsight.words import percent, shortened

_AT_ONCE = 16  # images
_SIDE, _GAP, _LINE = 448, 16, 22  # pixels
_NAME, _STEM = 60, 60  # characters
_INK, _QUIET = "#1b1b1b", "#6b6b6b"


def check_heat_folder(folder: Path) -> None:
    """Raise OutputError for a folder that is not empty, DiskError, or ConfigError for captum."""
    require_captum()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"--heatmap makes a new folder, but {folder} exists: choose another")
    check_output("--heatmap", folder / "000001.png")


class _Drawn(NamedTuple):
    """A prediction with its number, the image's bytes, and its pixels uint8 (H, W, C)."""

    number: int
    row: Prediction
    data: bytes
    pixels: Pixels


class HeatFolder:
    """Takes predictions as they come, and writes a file such as 000001-name.png for each.

    The number is the image's place among the inputs, the name its own without what is no
    letter, digit, dot or hyphen.
    """

    def __init__(self, folder: Path, predictor: Predictor) -> None:
        self.count = 0
        self._folder = folder
        self._classifier = predictor.classifier
        self._classes, self._format = predictor.classes, predictor.format

    def write(self, rows: Sequence[Prediction], inputs: Sequence[Input], first: int) -> None:
        """Draw these images, the first of which has this number, unless they have no class.

        Raises ModelError for a network without heat maps, DiskError.
        """
        drawn = []
        for number, (one, given) in enumerate(zip(rows, inputs, strict=True), first):
            if one.predicted is None:
                continue
            with suppress(ImageError):  # changed since it was predicted
                data = given.read()
                drawn.append(_Drawn(number, one, data, prepare_image(data, self._format)[1]))
        for start in range(0, len(drawn), _AT_ONCE):
            self._draw(drawn[start : start + _AT_ONCE])

    def _draw(self, some: Sequence[_Drawn]) -> None:
        images = torch.from_numpy(np.stack([one.pixels for one in some]))
        classes = torch.tensor([self._classes.index(str(one.row.predicted)) for one in some])
        for one, heat in zip(some, heat_maps(self._classifier, images, classes), strict=True):
            stem = re.sub(r"[^\w.-]+", "_", Path(os.path.basename(one.row.path)).stem)[:_STEM]
            place = self._folder / f"{one.number:06d}-{stem}.png"
            write_atomically(place, _page(one.row, one.data, heat, self._format))
            self.count += 1


def _page(one: Prediction, data: bytes, heat: Heat, target: ImageFormat) -> bytes:
    """The image, its heat and what was predicted, as a PNG file."""
    pixels = _original(data, target)
    pixels, heat = enlarged(pixels, on_original(heat, pixels.shape[:2], target.fit), _SIDE // 2)
    height, width = heat.shape
    wide = max(2 * width + _GAP, _SIDE)
    canvas = Canvas(wide + 2 * _GAP, height + 3 * _GAP + 2 * _LINE)
    canvas.image(_GAP, _GAP, np.broadcast_to(pixels, (*heat.shape, 3)))
    canvas.image(2 * _GAP + width, _GAP, overlay(pixels, heat))
    said = f"{shortened(str(one.predicted), _NAME // 2)} {percent(one.probability)}"
    canvas.write(_GAP, height + 2 * _GAP, Words(said, _INK, 11, "bold"))
    name = shortened(os.path.basename(one.path), _NAME)
    canvas.write(_GAP, height + 2 * _GAP + _LINE, Words(name, _QUIET, 8.5))
    return canvas.as_png()


def _original(data: bytes, target: ImageFormat) -> Pixels:
    """The image in its own shape, at most 448 pixels long."""
    pixels = decode(data, target.background, target.pixel_limit, (_SIDE, _SIDE))
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((_SIDE, _SIDE))
    return np.asarray(image, np.uint8).reshape(image.height, image.width, pixels.shape[2])
