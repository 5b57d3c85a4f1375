"""Predictions at a glance: one PNG with the images, the predictions and the true classes."""

import math
import os
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat
from onsight.data.pillow_pixels import Pixels
from onsight.data.sources.read_file import read_regular_file
from onsight.errors import ImageError, OutputError
from onsight.files import write_atomically
from onsight.inference.predictor import Prediction, Predictor
from onsight.report.canvas import Canvas, Words, tile
from onsight.words import percent, shortened

_MOST = 64  # images shown
_COLUMNS = 8

# In pixels; 168 is a multiple of 28, the most common size of small images.
_SIDE, _GAP, _LINE, _LINES = 168, 16, 17, 3
_CELL_WIDTH, _CELL_HEIGHT = _SIDE + _GAP, _SIDE + _LINES * _LINE + _GAP
_LABEL, _NAME, _REASON = 16, 27, 24  # characters that fit
_INK, _QUIET, _RIGHT, _WRONG = "#1b1b1b", "#6b6b6b", "#1a7f37", "#b42318"
_PAPER, _EDGE = "#f0f0f0", "#cccccc"


def check_grid_name(path: Path) -> None:
    """Raise OutputError for a name without .png."""
    if path.suffix.lower() != ".png":
        raise OutputError(f"--save-grid writes a PNG file, so its name must end in .png: {path}")


def save_grid(
    path: Path,
    predictions: Sequence[Prediction],
    predictor: Predictor,
    read: Callable[[str], bytes] = read_regular_file,
) -> int:
    """Draw the first 64 predictions in order, and return how many that were.

    read: gives the bytes of an image by its path in the prediction, or raises ImageError.
    If the parent folder is named like one of the classes, it is taken as the true class. An input
    that cannot be used is an empty tile with the reason. Raises DiskError.
    """
    shown = predictions[:_MOST]
    columns = min(_COLUMNS, len(shown), math.ceil(math.sqrt(1.5 * len(shown))))
    rows = math.ceil(len(shown) / columns)
    canvas = Canvas(columns * _CELL_WIDTH + _GAP, rows * _CELL_HEIGHT + _GAP)
    for place, prediction in enumerate(shown):
        row, column = divmod(place, columns)
        corner = _GAP + column * _CELL_WIDTH, _GAP + row * _CELL_HEIGHT
        _draw_tile(canvas, corner, prediction, predictor, read)
    write_atomically(path, canvas.as_png())
    return len(shown)


def _draw_tile(
    canvas: Canvas,
    corner: tuple[int, int],
    prediction: Prediction,
    predictor: Predictor,
    read: Callable[[str], bytes],
) -> None:
    x, y = corner
    actual = _actual(prediction.path, predictor.classes)
    wrong = None not in (actual, prediction.predicted) and actual != prediction.predicted
    canvas.square(x, y, _SIDE, facecolor=_PAPER, linewidth=0)
    pixels = _thumbnail(prediction, predictor.format, read)
    if pixels is None:
        canvas.write(x + 10, y + 10, _reason(prediction))
    else:
        height, width = pixels.shape[:2]
        canvas.image(x + (_SIDE - width) // 2, y + (_SIDE - height) // 2, pixels)
    look = {"edgecolor": _WRONG, "linewidth": 3} if wrong else {"edgecolor": _EDGE, "linewidth": 1}
    canvas.square(x - 1, y - 1, _SIDE + 2, fill=False, **look)
    for line, words in enumerate(_caption(prediction, actual, wrong)):
        canvas.write(x, y + _SIDE + 6 + line * _LINE, words)


def _actual(path: str, classes: Sequence[str]) -> str | None:
    """The class that the parent folder is named after, if any."""
    name = unicodedata.normalize("NFC", Path(path).absolute().parent.name)
    return name if name in classes else None


def _thumbnail(
    prediction: Prediction, target: ImageFormat, read: Callable[[str], bytes]
) -> Pixels | None:
    """The stored image as (H, W, 3) that fits a tile."""
    if prediction.problem is not None:
        return None
    try:
        data = read(prediction.path)
        pixels = decode(data, target.background, target.pixel_limit, (_SIDE, _SIDE))
    except ImageError:
        return None
    return tile(pixels, _SIDE)


def _reason(prediction: Prediction) -> Words:
    """Why there is no image, in the few lines that fit."""
    reason = prediction.problem or "changed since it was predicted"
    lines = textwrap.wrap(reason, _REASON, max_lines=6, placeholder=" …")
    return Words("\n".join(lines), _QUIET, 8)


def _caption(prediction: Prediction, actual: str | None, wrong: bool) -> list[Words]:
    """The lines below an image."""
    name = Words(shortened(os.path.basename(prediction.path), _NAME), _QUIET, 7)
    if prediction.problem is not None:
        return [Words("no prediction", _INK, 8.5, "bold"), name]
    label = prediction.predicted or "unsure"
    said = f"{shortened(label, _LABEL)} {percent(prediction.probability)}"
    lines = [Words(said, _INK, 8.5, "bold")]
    if actual is not None:
        sign, colour, weight = ("✗", _WRONG, "bold") if wrong else ("✓", _RIGHT, "normal")
        lines.append(Words(f"{sign} actual: {shortened(actual, _LABEL)}", colour, 8.5, weight))
    return [*lines, name]
