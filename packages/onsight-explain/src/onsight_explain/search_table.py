"""The results of a search, as a printed table and as JSON values."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from onsight_explain.search import MIN_GAIN, C, Losses, SearchChange, TrialResult
from onsight_explain.text import listed, ratio_words

_LOSSES: dict[Losses, str] = {
    "same": "the same",
    "close": "within 2%",
    "alike": "similar",
    "other": "different!",
    "not comparable": "not comparable",
}


def make_results_table(
    results: Sequence[TrialResult[C]],
    best: TrialResult[C] | None,
    baseline_rate: float,
    with_losses: bool,
) -> Table:
    """Build a table with a row for each result, the fastest first; rates are in images/s."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what if (each one was run)")
    for name in ("images/s", "ratio", "95% CI", *(["first losses"] if with_losses else [])):
        table.add_column(name, justify="right")
    table.add_row("unchanged", f"{baseline_rate:,.0f}", "1.00x")
    shown = [result for result in results if not best or result.changes != best.changes]
    for result in sorted([*shown, *([best] if best else [])], key=lambda result: -result.ratio):
        table.add_row(*_cells(result)[: len(table.columns)])
    return table


def describe_search(
    results: Sequence[TrialResult[C]],
    skipped: Sequence[SearchChange],
    baseline_rates: Sequence[float],
) -> str:
    """Describe how many changes were tried, and how much the baseline's windows vary."""
    text = (
        f"{len(results)} of {len(results) + len(skipped)} changes tried, each beside the unchanged "
        f"training, whose own {len(baseline_rates)} measurements range from "
        f"{min(baseline_rates):,.0f} to {max(baseline_rates):,.0f} images/s"
    )
    if skipped:
        text += f"; no time for {listed([change.label for change in skipped])}"
    return text


def result_facts(result: TrialResult[Any]) -> dict[str, Any]:
    """Return a result as plain values; null where there is no measurement."""
    return {
        "name": result.name,
        "names": [change.label for change in result.changes],
        "images_per_second": result.images_per_second or None,
        "ratio": result.ratio or None,
        "interval": result.interval.facts() if result.interval else None,
        "losses": result.losses,
        "same_loss": result.losses == "same",
        "problem": result.problem or None,
        "notes": result.notes,
    }


def best_ratio(best: TrialResult[Any] | None) -> float:
    """Return the lower end of the best speed-up; 1 without a clear gain."""
    return best.low if best and best.interval and best.interval.is_clear_gain else 1.0


def _cells(result: TrialResult[C]) -> list[str | Text]:
    if result.interval is None:
        problem = Text(result.problem, style="dim", overflow="fold")
        return [result.name, "failed", "", problem, ""]
    ratio = Text(ratio_words(result.ratio), style="green" if result.ratio >= MIN_GAIN else "")
    notes = [_LOSSES[result.losses], *(f"({note})" for note in result.notes)]
    rate = f"{result.images_per_second:,.0f}"
    return [result.name, rate, ratio, result.interval.ends, Text(" ".join(notes))]
