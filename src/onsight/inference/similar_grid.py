"""Similar images at a glance: one PNG with a row per input, and its neighbours beside it."""

import os
from collections.abc import Sequence
from pathlib import Path

from onsight.data.fit import ImageFormat
from onsight.data.pillow_pixels import Pixels
from onsight.errors import ImageError
from onsight.files import write_atomically
from onsight.inference.images import read_image
from onsight.inference.predictor import Prediction
from onsight.inference.similar import Neighbour
from onsight.report.canvas import Canvas, Words, tile
from onsight.words import shortened

_MOST, _MOST_NEIGHBOURS = 16, 10
_SIDE, _GAP, _LINE, _LINES = 112, 14, 16, 3  # in pixels; 112 is a multiple of 28
_CELL_WIDTH, _CELL_HEIGHT = _SIDE + _GAP, _SIDE + _LINES * _LINE + _GAP
_LABEL, _NAME = 15, 19  # characters that fit
_INK, _QUIET, _EDGE, _PAPER = "#1b1b1b", "#6b6b6b", "#cccccc", "#f0f0f0"


def save_similar_grid(
    path: Path, found: Sequence[tuple[Prediction, Sequence[Neighbour]]], target: ImageFormat
) -> int:
    """Draw the first 16 inputs with up to 10 neighbours each, and return how many inputs.

    Images are shown as the network sees them; target: what it takes. Raises DiskError.
    """
    shown = found[:_MOST]
    columns = 1 + max(len(near[:_MOST_NEIGHBOURS]) for _, near in shown)
    canvas = Canvas(columns * _CELL_WIDTH + 2 * _GAP, len(shown) * _CELL_HEIGHT + _GAP)
    for row, (query, near) in enumerate(shown):
        y = _GAP + row * _CELL_HEIGHT
        _draw(canvas, (_GAP, y), _pixels(query, target), _query_caption(query))
        for column, one in enumerate(near[:_MOST_NEIGHBOURS], 1):
            _draw(canvas, (2 * _GAP + column * _CELL_WIDTH, y), one.pixels, _caption(one))
    write_atomically(path, canvas.as_png())
    return len(shown)


def _draw(
    canvas: Canvas, corner: tuple[int, int], pixels: Pixels | None, caption: Sequence[Words]
) -> None:
    x, y = corner
    canvas.square(x, y, _SIDE, facecolor=_PAPER, edgecolor=_EDGE, linewidth=1)
    if pixels is not None:
        fitted = tile(pixels, _SIDE)
        height, width = fitted.shape[:2]
        canvas.image(x + (_SIDE - width) // 2, y + (_SIDE - height) // 2, fitted)
    for line, words in enumerate(caption):
        canvas.write(x, y + _SIDE + 5 + line * _LINE, words)


def _pixels(query: Prediction, target: ImageFormat) -> Pixels | None:
    try:
        return None if query.problem else read_image(query.path, target)
    except ImageError:  # changed in the meantime
        return None


def _query_caption(query: Prediction) -> list[Words]:
    said = f"predicted {query.predicted}" if query.predicted else query.problem or ""
    return [Words(shortened(said, _NAME), _INK, 7.5, "bold"), _name(query.path)]


def _caption(one: Neighbour) -> list[Words]:
    said = "identical" if one.identical else f"{one.similarity:.3f}"
    lines = [Words(said, _INK, 7.5, "bold")]
    if one.label:
        lines.append(Words(shortened(one.label, _LABEL), _INK, 7.5))
    return [*lines, _name(one.path)]


def _name(path: str) -> Words:
    return Words(shortened(os.path.basename(path), _NAME), _QUIET, 6.5)
