"""The chart of docs/understand/scaling.md: efficiency against the number of GPUs, as SVG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

CURVES = (
    ("even", "GPUs of even speed", "#2a6fc9"),
    ("slow", "0.5% of machines 10% slower", "#c2541b"),
    ("llama", "and ranks lost as often as for Llama 3", "#3a8a3a"),
    ("rsc", "and as often as in Meta's research cluster", "#8a3a8a"),
)


def draw(rows: list[dict[str, float]], published: Mapping[int, float], place: Path) -> None:
    """Write the chart. rows: scaling.py's plan; published: images/s by number of GPUs."""
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "scaling", "font.size": 10}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        gpus = [row["gpus"] for row in rows]
        for name, label, colour in CURVES:
            axes.plot(gpus, [100 * row[name] for row in rows], "o-", color=colour, label=label)
        first, alone = min(published.items())
        shares = [100 * rate / alone * first / count for count, rate in published.items()]
        axes.plot(list(published), shares, "kx", label="published (NVIDIA, ViT g/14)")
        axes.set_xscale("log", base=2)
        axes.set_xticks(gpus, [f"{count:,}" for count in gpus])
        axes.set_ylim(70, 102)
        axes.set_xlabel("GPUs")
        axes.set_ylabel("% of the speed of as many single machines")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left", frameon=False)
        place.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(place, format="svg", metadata={"Date": None})
