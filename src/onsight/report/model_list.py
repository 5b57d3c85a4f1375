"""The list of `onsight models`: where weights are, and what a model costs."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from onsight.models.model_list import count_cost, find_models, locate_weights, recommended_models
from onsight.models.timm_nets import offline_hint
from onsight.words import plural

_MOST_COUNTED = 40  # counting takes a fraction of a second for each
_LEGEND = (
    "weights: here = no network needed (--pretrained), Hub = from the Hugging Face Hub, "
    "none = not published (--weights FILE takes your own). Parameters and multiply-adds are for "
    "one colour image of that size and the published head (Onsight's own: 10 classes)."
)


def list_models(pattern: str, as_json: bool, console: Console) -> None:
    """Print the models that match a pattern, or a short list. Raises ModelError."""
    names = find_models(pattern) if pattern else recommended_models()
    counted = len(names) <= _MOST_COUNTED
    with Console(stderr=True).status("counting multiply-adds"):
        rows = [_row(name, counted) for name in names]
    if as_json:
        print(json.dumps({"models": rows, "to_install": offline_hint()}))
        return
    if counted:
        console.print(_table(rows))
        console.print(_LEGEND)
    else:
        for row in rows:
            console.print(f"{row['name']}  (weights: {row['weights']})")
    for line in _hints(pattern, len(rows), counted):
        console.print(line, markup=False)


def _row(name: str, counted: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "weights": locate_weights(name)}
    return row | (vars(count_cost(name)) if counted else {})


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("model", no_wrap=True)
    table.add_column("weights")
    for title in ("size", "parameters", "multiply-adds"):
        table.add_column(title, justify="right")
    for row in rows:
        size = "x".join(str(side) for side in row["size"] or ("–",))
        table.add_row(
            row["name"],
            row["weights"],
            size,
            _millions(row["parameters"]),
            _millions(row["multiply_adds"]),
        )
    return table


def _millions(count: int | None) -> str:
    if count is None:
        return "–"
    return f"{count / 1e6:,.2f} M" if count < 1e7 else f"{count / 1e6:,.0f} M"


def _hints(pattern: str, shown: int, counted: bool) -> list[str]:
    hints = []
    if not pattern:
        hints.append(
            "Without --model, onsight train tries sprint and the tf_efficientnet_lite nets whose "
            "weights are here on some of your images, and takes what promises most"
        )
        hints.append("All of timm's: onsight models '*'; some of them: onsight models mobilenet")
    if not counted:
        narrower = f"for at most {_MOST_COUNTED} models the cost is shown too"
        hints.append(f"{plural(shown, 'model')}; {narrower}")
    hint = offline_hint()
    return hints + ([hint] if hint else [])
