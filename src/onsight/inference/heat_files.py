"""Heat maps of predictions as PNG files: each image, and next to it the regions that mattered.

C channels, H height, W width.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from onsight.data.decode import decode, prepare_image
from onsight.data.fit import ImageFormat
from onsight.data.pixels import Pixels, to_pillow
from onsight.errors import ImageError, OutputError
from onsight.files import check_output, write_atomically
from onsight.heatmaps.heat import heat_maps, require_captum
from onsight.heatmaps.overlay import Heat, enlarge, map_to_original, overlay
from onsight.inference.images import Input
from onsight.inference.predictor import Prediction, Predictor
from onsight.report.canvas import Canvas, CanvasText
from onsight.text import percent, shorten

_BATCH_SIZE = 16
_SIDE, _GAP, _LINE = 448, 16, 22  # pixels
_NAME, _STEM = 60, 60  # characters
_INK, _QUIET = "#1b1b1b", "#6b6b6b"


def check_heat_folder(folder: Path) -> None:
    """Raise OutputError unless the folder is new or empty; DiskError; ConfigError for captum."""
    require_captum()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"--heatmap creates a new folder, but {folder} exists: choose another")
    check_output("--heatmap", folder / "000001.png")


class _Drawing(NamedTuple):
    """A prediction to draw."""

    number: int  # position of the image among the inputs, from 1
    row: Prediction
    data: bytes  # content of the image's file
    pixels: Pixels  # uint8 (H, W, C), as the network receives them


class HeatFolder:
    """Writes a file such as 000001-NAME.png for each prediction.

    The number is the image's position among the inputs. NAME is the name of its file, with all
    characters replaced except letters, digits, underscores, dots and hyphens.
    """

    def __init__(self, folder: Path, predictor: Predictor) -> None:
        self.count = 0
        self._folder = folder
        self._classifier = predictor.classifier
        self._classes, self._format = predictor.classes, predictor.format

    def write(self, rows: Sequence[Prediction], inputs: Sequence[Input], first: int) -> None:
        """Draw images numbered from `first`, except those without a predicted class.

        Raises ModelError for a network without heat maps, DiskError.
        """
        drawings = []
        for number, (row, image) in enumerate(zip(rows, inputs, strict=True), first):
            if row.predicted is None:
                continue
            with suppress(ImageError):  # the file has changed since it was predicted
                data = image.read()
                pixels = prepare_image(data, self._format)[1]
                drawings.append(_Drawing(number, row, data, pixels))
        for start in range(0, len(drawings), _BATCH_SIZE):
            self._draw(drawings[start : start + _BATCH_SIZE])

    def _draw(self, drawings: Sequence[_Drawing]) -> None:
        images = torch.from_numpy(np.stack([drawing.pixels for drawing in drawings]))
        numbers = [self._classes.index(str(drawing.row.predicted)) for drawing in drawings]
        heats = heat_maps(self._classifier, images, torch.tensor(numbers))
        for drawing, heat in zip(drawings, heats, strict=True):
            name = Path(os.path.basename(drawing.row.path)).stem
            stem = re.sub(r"[^\w.-]+", "_", name)[:_STEM]
            path = self._folder / f"{drawing.number:06d}-{stem}.png"
            write_atomically(path, _draw_page(drawing.row, drawing.data, heat, self._format))
            self.count += 1


def _draw_page(row: Prediction, data: bytes, heat: Heat, target: ImageFormat) -> bytes:
    """Return a PNG file with the image, its heat map, and the prediction."""
    pixels = _decode_original(data, target)
    pixels, heat = enlarge(pixels, map_to_original(heat, pixels.shape[:2], target.fit), _SIDE // 2)
    height, width = heat.shape
    content_width = max(2 * width + _GAP, _SIDE)
    canvas = Canvas(content_width + 2 * _GAP, height + 3 * _GAP + 2 * _LINE)
    canvas.image(_GAP, _GAP, np.broadcast_to(pixels, (*heat.shape, 3)))
    canvas.image(2 * _GAP + width, _GAP, overlay(pixels, heat))
    label = f"{shorten(str(row.predicted), _NAME // 2)} {percent(row.probability)}"
    canvas.write(_GAP, height + 2 * _GAP, CanvasText(label, _INK, 11, "bold"))
    name = shorten(os.path.basename(row.path), _NAME)
    canvas.write(_GAP, height + 2 * _GAP + _LINE, CanvasText(name, _QUIET, 8.5))
    return canvas.as_png()


def _decode_original(data: bytes, target: ImageFormat) -> Pixels:
    """Decode an image with its original proportions, at most 448 pixels long."""
    pixels = decode(data, target.background, target.pixel_limit, (_SIDE, _SIDE))
    image = to_pillow(pixels)
    image.thumbnail((_SIDE, _SIDE))
    return np.asarray(image, np.uint8).reshape(image.height, image.width, pixels.shape[2])
