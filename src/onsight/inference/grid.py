"""Images in one PNG: predictions in a grid, or queries with their neighbours in rows."""

import math
import os
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onsight.data.decode import decode
from onsight.data.fit import ImageFormat
from onsight.data.pixels import Pixels
from onsight.errors import ImageError, OutputError
from onsight.files import PNG_MARK, refuse_foreign, write_atomically
from onsight.inference.images import Input, read_image
from onsight.inference.predictor import Prediction, Predictor
from onsight.report.canvas import Canvas, CanvasText, tile
from onsight.text import percent, shorten

if TYPE_CHECKING:  # it loads torch
    from onsight.inference.similar import Neighbour


class _Cell(NamedTuple):
    """The size of an image with its caption, in pixels."""

    side: int  # side of the image's square; a multiple of 28, the most common size of small images
    gap: int
    caption_gap: int
    line: int
    lines: int

    @property
    def width(self) -> int:
        return self.side + self.gap

    @property
    def height(self) -> int:
        return self.side + self.lines * self.line + self.gap


_PREDICTION = _Cell(side=168, gap=16, caption_gap=6, line=17, lines=3)
_SIMILAR = _Cell(side=112, gap=14, caption_gap=5, line=16, lines=3)
_COLUMNS = 8  # of predictions
_MAX_QUERIES, _MAX_NEIGHBOURS = 16, 10
_LABEL, _NAME, _REASON = 16, 27, 24  # characters that fit in a line of a prediction
_SIMILAR_LABEL, _SIMILAR_NAME = 15, 19
_INK, _QUIET, _RIGHT, _WRONG = "#1b1b1b", "#6b6b6b", "#1a7f37", "#b42318"
_PAPER, _EDGE = "#f0f0f0", "#cccccc"


def check_grid_name(path: Path) -> None:
    """Raise OutputError for a name without .png, or a file that Onsight did not write."""
    if path.suffix.lower() != ".png":
        raise OutputError(f"--save-grid writes a PNG file, so its name must end in .png: {path}")
    refuse_foreign(path, PNG_MARK, "a grid", "--save-grid")


def save_grid(
    path: Path, predictions: Sequence[tuple[Prediction, Input]], predictor: Predictor
) -> None:
    """Draw predictions of inputs in order.

    An image whose parent folder is named like one of the classes is assumed to be of that class.
    An input that cannot be used is an empty tile with the reason. Raises DiskError.
    """
    count = len(predictions)
    columns = min(_COLUMNS, count, math.ceil(math.sqrt(1.5 * count)))
    rows = math.ceil(count / columns)
    cell = _PREDICTION
    canvas = Canvas(columns * cell.width + cell.gap, rows * cell.height + cell.gap)
    for index, (prediction, image) in enumerate(predictions):
        row, column = divmod(index, columns)
        corner = cell.gap + column * cell.width, cell.gap + row * cell.height
        _draw_prediction(canvas, corner, prediction, image, predictor)
    write_atomically(path, canvas.as_png())


def save_similar_grid(
    path: Path,
    answers: Sequence[tuple[Prediction, Sequence["Neighbour"]]],
    target: ImageFormat,
) -> int:
    """Draw the first 16 queries with up to 10 neighbours each; return how many queries.

    Images are drawn as the network receives them, in the format target. Raises DiskError.
    """
    shown = answers[:_MAX_QUERIES]
    columns = 1 + max(len(neighbours[:_MAX_NEIGHBOURS]) for _, neighbours in shown)
    cell = _SIMILAR
    canvas = Canvas(columns * cell.width + 2 * cell.gap, len(shown) * cell.height + cell.gap)
    frame: dict[str, Any] = {"facecolor": _PAPER, "edgecolor": _EDGE, "linewidth": 1}
    for row, (query, neighbours) in enumerate(shown):
        corner = cell.gap, cell.gap + row * cell.height
        canvas.square(*corner, cell.side, **frame)
        _draw_tile(canvas, corner, cell, _read_query(query, target), _query_caption(query))
        for column, neighbour in enumerate(neighbours[:_MAX_NEIGHBOURS], 1):
            corner = 2 * cell.gap + column * cell.width, cell.gap + row * cell.height
            canvas.square(*corner, cell.side, **frame)
            _draw_tile(canvas, corner, cell, neighbour.pixels, _neighbour_caption(neighbour))
    write_atomically(path, canvas.as_png())
    return len(shown)


def _draw_prediction(
    canvas: Canvas,
    corner: tuple[int, int],
    prediction: Prediction,
    image: Input,
    predictor: Predictor,
) -> None:
    x, y = corner
    side = _PREDICTION.side
    actual = _actual_class(prediction.path, predictor.classes)
    wrong = None not in (actual, prediction.predicted) and actual != prediction.predicted
    canvas.square(x, y, side, facecolor=_PAPER, linewidth=0)
    pixels = None if prediction.problem else _thumbnail(image, predictor.format)
    if pixels is None:
        canvas.write(x + 10, y + 10, _missing_reason(prediction))
    _draw_tile(canvas, corner, _PREDICTION, pixels, _prediction_caption(prediction, actual, wrong))
    frame: dict[str, Any] = {"edgecolor": _EDGE, "linewidth": 1}
    if wrong:
        frame = {"edgecolor": _WRONG, "linewidth": 3}
    canvas.square(x - 1, y - 1, side + 2, fill=False, **frame)


def _draw_tile(
    canvas: Canvas,
    corner: tuple[int, int],
    cell: _Cell,
    pixels: Pixels | None,
    caption: Sequence[CanvasText],
) -> None:
    x, y = corner
    if pixels is not None:
        fitted = tile(pixels, cell.side)
        height, width = fitted.shape[:2]
        canvas.image(x + (cell.side - width) // 2, y + (cell.side - height) // 2, fitted)
    for index, line in enumerate(caption):
        canvas.write(x, y + cell.side + cell.caption_gap + index * cell.line, line)


def _actual_class(path: str, classes: Sequence[str]) -> str | None:
    """Return the class that the parent folder is named after, if any."""
    name = unicodedata.normalize("NFC", Path(path).absolute().parent.name)
    return name if name in classes else None


def _thumbnail(image: Input, target: ImageFormat) -> Pixels | None:
    """Decode an image at about the size of a tile, in its proportions; None if it cannot be."""
    side = _PREDICTION.side
    try:
        return decode(image.read(), target.background, target.pixel_limit, (side, side))
    except ImageError:  # the file has changed since it was predicted
        return None


def _missing_reason(prediction: Prediction) -> CanvasText:
    """Return why there is no image, in the few lines that fit."""
    reason = prediction.problem or "changed since it was predicted"
    lines = textwrap.wrap(reason, _REASON, max_lines=6, placeholder=" …")
    return CanvasText("\n".join(lines), _QUIET, 8)


def _prediction_caption(
    prediction: Prediction, actual: str | None, wrong: bool
) -> list[CanvasText]:
    name = CanvasText(shorten(os.path.basename(prediction.path), _NAME), _QUIET, 7)
    if prediction.problem is not None:
        return [CanvasText("no prediction", _INK, 8.5, "bold"), name]
    label = shorten(prediction.predicted or "unsure", _LABEL)
    lines = [CanvasText(f"{label} {percent(prediction.probability)}", _INK, 8.5, "bold")]
    if actual is not None:
        sign, colour, weight = ("✗", _WRONG, "bold") if wrong else ("✓", _RIGHT, "normal")
        lines.append(CanvasText(f"{sign} actual: {shorten(actual, _LABEL)}", colour, 8.5, weight))
    return [*lines, name]


def _read_query(query: Prediction, target: ImageFormat) -> Pixels | None:
    try:
        return None if query.problem else read_image(query.path, target)
    except ImageError:  # the file has changed since it was predicted
        return None


def _query_caption(query: Prediction) -> list[CanvasText]:
    text = f"predicted {query.predicted}" if query.predicted else query.problem or ""
    return [CanvasText(shorten(text, _SIMILAR_NAME), _INK, 7.5, "bold"), _file_name(query.path)]


def _neighbour_caption(neighbour: "Neighbour") -> list[CanvasText]:
    text = "identical" if neighbour.identical else f"{neighbour.similarity:.3f}"
    lines = [CanvasText(text, _INK, 7.5, "bold")]
    if neighbour.label:
        lines.append(CanvasText(shorten(neighbour.label, _SIMILAR_LABEL), _INK, 7.5))
    return [*lines, _file_name(neighbour.path)]


def _file_name(path: str) -> CanvasText:
    return CanvasText(shorten(os.path.basename(path), _SIMILAR_NAME), _QUIET, 6.5)
