"""The plot of a comparison: images/s of every candidate by batch size."""

import io
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from onsight.errors import OutputError
from onsight.explainer.compare.measure import Comparison
from onsight.files import write_atomically

_SIZE_INCHES, _DPI = (8.0, 5.0), 120


def check_plot_name(path: Path) -> None:
    """Raise OutputError for a name without .png."""
    if path.suffix.lower() != ".png":
        raise OutputError(f"--save-plot writes a PNG file, so its name must end in .png: {path}")


def draw_comparison(comparison: Comparison, path: Path) -> None:
    """A line for each candidate on logarithmic axes, with spreads as bars. Raises DiskError."""
    figure = Figure(_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(xscale="log", yscale="log")
    for candidate in comparison.candidates:
        cells = [c for c in comparison.cells if c.candidate == candidate and not c.problem]
        rates = [cell.images_per_second for cell in cells]
        below = [rate - c.batch_size / max(c.rounds) for rate, c in zip(rates, cells, strict=True)]
        above = [c.batch_size / min(c.rounds) - rate for rate, c in zip(rates, cells, strict=True)]
        sizes = [cell.batch_size for cell in cells]
        axes.errorbar(sizes, rates, (below, above), marker="o", capsize=3, label=candidate.name)
    axes.xaxis.set_major_locator(FixedLocator(comparison.batch_sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    height, width, channels = comparison.shape
    axes.set(
        xlabel="batch size",
        ylabel="images/s",
        title=f"Training {comparison.model} on {height}x{width}x{channels} images",
    )
    axes.grid(alpha=0.3)
    axes.legend()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=_DPI)
    write_atomically(path, data.getvalue())
