"""The list of `onsight models`: where each model's weights are, and what it costs."""

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from onsight.models.model_list import count_cost, find_models, locate_weights, recommended_models
from onsight.models.timm_nets import offline_hint
from onsight.text import NO_VALUE, plural

_MAX_COUNTED = 40  # models; counting takes a fraction of a second per model
_LEGEND = (
    "weights: here = installed (--pretrained works offline), Hub = from the Hugging Face Hub, "
    "none = not published (use --weights FILE). Parameters and multiply-adds are for one colour "
    "image of that size and the published head (Onsight's own models: 10 classes)."
)


def list_models(pattern: str, as_json: bool, console: Console) -> None:
    """Print the models that match a pattern, or a short list. Raises ModelError."""
    names = find_models(pattern) if pattern else recommended_models()
    with_cost = len(names) <= _MAX_COUNTED
    with Console(stderr=True).status("counting multiply-adds"):
        rows = [
            {
                "name": name,
                "weights": locate_weights(name),
                **(vars(count_cost(name)) if with_cost else {}),
            }
            for name in names
        ]
    if as_json:
        print(json.dumps({"models": rows, "to_install": offline_hint()}))
        return
    if with_cost:
        console.print(_table(rows))
        console.print(_LEGEND)
    else:
        for row in rows:
            console.print(f"{row['name']}  (weights: {row['weights']})")
    for line in _hints(pattern, len(rows), with_cost):
        console.print(line, markup=False)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    table.add_column("weights")
    for title in ("size", "parameters", "multiply-adds"):
        table.add_column(title, justify="right")
    for row in rows:
        size = "x".join(str(side) for side in row["size"] or (NO_VALUE,))
        costs = (_millions(row[key]) for key in ("parameters", "multiply_adds"))
        table.add_row(row["name"], row["weights"], size, *costs)
    return table


def _millions(count: int | None) -> str:
    if count is None:
        return NO_VALUE
    return f"{count / 1e6:,.2f} M" if count < 1e7 else f"{count / 1e6:,.0f} M"


def _hints(pattern: str, count: int, with_cost: bool) -> Iterator[str]:
    if not pattern:
        yield (
            "Without --model, onsight train trains up to three networks and blends them: a new "
            "last layer on a pretrained network, a small network from scratch, and the pretrained "
            "network fine-tuned"
        )
        yield "All timm models: onsight models '*'; some: onsight models mobilenet"
    if not with_cost:
        yield f"{plural(count, 'model')}; the cost is shown for at most {_MAX_COUNTED} models"
    if hint := offline_hint():
        yield hint
