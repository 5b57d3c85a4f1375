"""What a search tried, as a table for people and plain values for programs."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from onsight_explain.search.gain import GAIN
from onsight_explain.search.tried import C, Change, Losses, Tried
from onsight_explain.text import listed, ratio_words

_LOSSES: dict[Losses, str] = {
    "same": "the same",
    "close": "within 2%",
    "alike": "alike",
    "other": "other!",
    "not comparable": "not comparable",
}


def tried_table(
    tried: Sequence[Tried[C]], best: Tried[C] | None, rate: float, with_losses: bool
) -> Table:
    """A row for each, the fastest first. rate: images/s of the unchanged training."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what if (each one was run)")
    for name in ("images/s", "ratio", "between", *(["first losses"] if with_losses else [])):
        table.add_column(name, justify="right")
    table.add_row("as it is", f"{rate:,.0f}", "1.00x")
    shown = [one for one in tried if not best or one.changes != best.changes]
    for one in sorted([*shown, *([best] if best else [])], key=lambda one: -one.ratio):
        table.add_row(*_cells(one)[: len(table.columns)])
    return table


def how_measured(
    tried: Sequence[Tried[C]], left_out: Sequence[Change], rates: Sequence[float]
) -> str:
    """How many changes were tried, and how much the unchanged training's own windows differ."""
    said = (
        f"{len(tried)} of {len(tried) + len(left_out)} changes tried, each beside the unchanged "
        f"training, whose own {len(rates)} measurements lie between {min(rates):,.0f} and "
        f"{max(rates):,.0f} images/s"
    )
    if left_out:
        said += f"; no time for {listed([one.label for one in left_out])}"
    return said


def tried_facts(one: Tried[Any]) -> dict[str, Any]:
    """Plain values."""
    return {
        "name": one.name,
        "names": [change.label for change in one.changes],
        "images_per_second": one.images_per_second or None,
        "ratio": one.ratio or None,
        "interval": one.interval.facts() if one.interval else None,
        "losses": one.losses,
        "same_loss": one.losses == "same",
        "problem": one.problem or None,
        "notes": one.notes,
    }


def best_ratio(best: Tried[Any] | None) -> float:
    """How many times as fast it is at least; 1 if nothing was shown."""
    return best.low if best and best.interval and best.interval.is_shown else 1.0


def _cells(one: Tried[C]) -> list[str | Text]:
    if one.interval is None:
        return [one.name, "failed", "", Text(one.problem, style="dim", overflow="fold"), ""]
    ratio = Text(ratio_words(one.ratio), style="green" if one.ratio >= GAIN else "")
    notes = Text(" ".join([_LOSSES[one.losses], *(f"({note})" for note in one.notes)]))
    return [one.name, f"{one.images_per_second:,.0f}", ratio, one.interval.ends, notes]
