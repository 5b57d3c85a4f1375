"""Plots as inline SVG: text stays text, colours follow the page, equal input makes equal bytes.

Plots are drawn (without pyplot) in placeholder colours, which are then replaced by the page's CSS
variables, so that the same plot suits a light and a dark page.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter
from numpy.typing import ArrayLike, NDArray

from onsight.evaluation.results import LearningCurve
from onsight.evaluation.statistics import wilson
from onsight.text import shorten

_INK, _GRID, _FIRST, _SECOND = "#010203", "#020304", "#030405", "#040506"
_CSS_COLOURS = {
    _INK: "var(--quiet, #777)",
    _GRID: "var(--line, #ccc)",
    _FIRST: "var(--blue, #2a6fc9)",
    _SECOND: "var(--orange, #c2541b)",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.usetex": False,
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.6,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 3.5,
    "legend.frameon": False,
}
_PAGE_BLUE, _PAGE_ORANGE = (0.20, 0.47, 0.82), (0.86, 0.42, 0.16)

Rows = Sequence[Mapping[str, Any]]


def loss_curve(epochs: Rows) -> str:
    """Plot training and validation loss by epoch, as SVG."""

    def paint(figure: Figure) -> None:
        axes = _epoch_axes(figure)
        _line(axes, epochs, "train_loss", _SECOND, "training", "--")
        _line(axes, epochs, "validation_loss", _FIRST, "validation")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper right")

    return _draw("loss", (4.1, 2.8), paint, "Training and validation loss by epoch")


def accuracy_curve(epochs: Rows) -> str:
    """Plot validation accuracy by epoch with its 95% interval, as SVG."""

    def paint(figure: Figure) -> None:
        axes = _epoch_axes(figure)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        x, low = _points(epochs, "validation_accuracy_low")
        _, high = _points(epochs, "validation_accuracy_high")
        if len(low) == len(high) > 0:
            axes.fill_between(x, low, high, color=_FIRST, alpha=0.2, lw=0, label="95% CI")
        _line(axes, epochs, "validation_accuracy", _FIRST, "validation")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right")

    return _draw("accuracy", (4.1, 2.8), paint, "Validation accuracy by epoch with its 95% CI")


def member_curves(histories: Mapping[str, Rows]) -> str:
    """Plot the validation accuracy of several models by the time spent on training, as SVG.

    Args:
        histories: The epochs of each model, in the order in which the models were trained.
    """

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xlabel("seconds of training, without folds")
        axes.set_ylabel("validation accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        styles = cycle(zip((_FIRST, _SECOND, _INK), ("-", "--", ":"), strict=True))
        begun = 0.0
        for (name, epochs), (colour, style) in zip(histories.items(), styles, strict=False):
            ends = begun + np.cumsum(_column(epochs, "seconds"))
            points = [
                (end, row["validation_accuracy"])
                for end, row in zip(ends, epochs, strict=True)
                if row.get("validation_accuracy") is not None
            ]
            begun = ends[-1] if len(ends) else begun
            if points:
                marker = "o" if len(points) <= 30 else ""
                axes.plot(
                    *zip(*points, strict=True), style, color=colour, marker=marker, label=name
                )
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right")

    return _draw("members", (6.2, 2.8), paint, "Validation accuracy of each model over time")


def learning_rate_curve(epochs: Rows) -> str:
    """Plot the learning rate by epoch, as SVG."""

    def paint(figure: Figure) -> None:
        axes = _epoch_axes(figure)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
        _line(axes, epochs, "learning_rate", _FIRST, "learning rate")
        axes.set_ylim(bottom=0)

    return _draw("rate", (4.1, 2.8), paint, "Learning rate by epoch")


def calibration_diagram(bins: Rows, before: Rows = ()) -> str:
    """Plot the accuracy and the number of images at each level of confidence, as SVG.

    before: the bins without temperature scaling, drawn in addition.
    """
    filled, unscaled = ([row for row in rows if row["images"]] for rows in (bins, before))

    def paint(figure: Figure) -> None:
        share, count = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        share.plot([0, 1], [0, 1], "--", color=_INK, lw=1, label="perfectly calibrated")
        if unscaled:
            x, y = (_column(unscaled, key) for key in ("confidence", "accuracy"))
            share.plot(x, y, "o:", color=_SECOND, lw=1.2, label="before temperature scaling")
        accuracy, confidence = (_column(filled, key) for key in ("accuracy", "confidence"))
        intervals = [
            wilson(round(row["accuracy"] * row["images"]), row["images"]) for row in filled
        ]
        low, high = np.array(intervals).T
        spread = np.maximum([accuracy - low, high - accuracy], 0)
        share.errorbar(
            confidence, accuracy, spread, fmt="o-", color=_FIRST, lw=1.2, elinewidth=1.4,
            label="this model (95% CI)",
        )  # fmt: skip
        share.set(ylim=(0, 1.02), xlim=(0, 1.01), ylabel="accuracy")
        share.legend(loc="best")
        _count_bars(count, filled)
        for axis in (share.yaxis, count.xaxis):
            axis.set_major_formatter(PercentFormatter(1))

    return _draw("calibration", (4.4, 4.3), paint, "Calibration: accuracy by confidence")


def learning_curve(curve: LearningCurve) -> str:
    """Plot the accuracy by the number of training images and the fitted power law, as SVG."""
    points = curve["points"]
    sizes = [point["train_images"] for point in points]

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        x = np.geomspace(sizes[0], 2 * sizes[-1], 60)
        y = 1 - curve["factor"] * x ** -curve["exponent"]
        axes.plot(x, y, "--", color=_SECOND, lw=1.4, label="fitted power law")
        low, high = _column(points, "accuracy_low"), _column(points, "accuracy_high")
        axes.vlines(sizes, low, high, color=_FIRST, lw=1.4, label="95% CI")
        axes.plot(sizes, _column(points, "accuracy"), "o", color=_FIRST)
        axes.set_xscale("log", base=2)
        axes.set_xticks([*sizes, 2 * sizes[-1]])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.set_xlabel("training images")
        axes.legend(loc="lower right")

    return _draw("more", (4.1, 2.8), paint, "Accuracy by the number of training images")


def confusion_image(confusion: ArrayLike, names: Sequence[str]) -> str:
    """Draw a K x K matrix as SVG: correct cells blue, mistakes orange, darker is more.

    Rows are true classes; a cell's opacity is the square root of its share of the row.
    """
    counts = np.asarray(confusion, dtype=float)
    size = len(names)

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        axes.imshow(_cell_colours(counts), interpolation="none")
        axes.grid(False)
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.spines[["top", "right"]].set_visible(True)
        if size <= 60:
            short = [shorten(name, 18) for name in names]
            axes.set_xticks(range(size), short, rotation=90)
            axes.set_yticks(range(size), short)
            axes.tick_params(labelsize=7.5 if size <= 40 else 6)

    return _draw("confusion", (8.2, 8.2), paint, f"Confusion matrix of {size} classes")


def _epoch_axes(figure: Figure) -> Axes:
    axes = figure.subplots()
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    return axes


def _points(epochs: Rows, key: str) -> tuple[list[float], list[float]]:
    pairs = [(row["epoch"], row[key]) for row in epochs if row.get(key) is not None]
    return [float(x) for x, _ in pairs], [float(y) for _, y in pairs]


def _line(axes: Axes, epochs: Rows, key: str, colour: str, label: str, style: str = "-") -> None:
    x, y = _points(epochs, key)
    if x:
        marker = "o" if len(x) <= 30 else ""
        axes.plot(x, y, linestyle=style, marker=marker, color=colour, label=label)


def _column(rows: Rows, key: str) -> NDArray[np.float64]:
    return np.array([float(row[key]) for row in rows])


def _count_bars(axes: Axes, bins: Rows) -> None:
    low, high = _column(bins, "low"), _column(bins, "high")
    axes.bar(
        (low + high) / 2, _column(bins, "images"), 0.9 * (high - low), color=_FIRST, alpha=0.55
    )
    # Nearly all images are in the last bin: a linear scale would hide the others.
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    axes.yaxis.set_major_locator(LogLocator(10, numticks=4))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set(xlabel="confidence", ylabel="images")


def _cell_colours(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return red, green, blue and opacity, (K, K, 4); empty cells are transparent."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    pixels = np.empty((*counts.shape, 4))
    pixels[..., :3] = _PAGE_ORANGE
    diagonal = np.arange(len(counts))
    pixels[diagonal, diagonal, :3] = _PAGE_BLUE
    pixels[..., 3] = np.sqrt(shares)
    return pixels


def _draw(
    name: str, inches: tuple[float, float], paint: Callable[[Figure], None], label: str
) -> str:
    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        # The browser has the glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure = Figure(figsize=inches, layout="constrained")
        paint(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), name, label)


def _inline(svg: str, name: str, label: str) -> str:
    """Turn a stand-alone SVG file into an element of a page that may contain others."""
    svg = svg[svg.index("<svg") :]
    # A <style> would apply to the whole page; metadata and namespaces contain foreign URLs.
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    head, _, body = svg.partition(">")
    box = re.search(r'viewBox="[^"]*"', head)
    opening = f'<svg {box.group() if box else ""} role="img" aria-label="{escape(label)}">'
    # Only inside tags: the text between them may contain the user's class names.
    return opening + re.sub("<[^>]*>", lambda tag: _page_tag(tag.group(), name), body)


def _page_tag(tag: str, name: str) -> str:
    """Prefix the ids in a tag with the plot's name, and replace colours by the page's variables."""
    tag = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
    tag = tag.replace("xlink:href=", "href=")
    return re.sub("|".join(_CSS_COLOURS), lambda match: _CSS_COLOURS[match.group()], tag)
