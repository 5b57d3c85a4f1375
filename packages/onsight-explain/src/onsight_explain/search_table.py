"""The results of a search, as a printed table and as JSON values."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onsight_explain.search import C, Losses, SearchResult, TrialResult
from onsight_explain.text import listed, ratio_words

_MAX_ROWS = 6
_MAX_NOISE = 1.25  # speed-up; if noise hides larger ones, what seems not to help may help much
_BUSY_RATIO = 2.0  # other work on the same cores may halve a speed
_LOSSES: dict[Losses, str] = {
    "same": "the same",
    "close": "within 2%",
    "alike": "similar",
    "other": "different!",
    "not comparable": "not comparable",
}


def print_search(
    found: SearchResult[C], best: TrialResult[C] | None, console: Console, *, with_losses: bool
) -> None:
    """Print the changes that were shown to gain, the surest gain first, and a note on the rest."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what was shown to help")
    for name in ("images/s", "ratio", "95% CI", *(["first losses"] if with_losses else [])):
        table.add_column(name, justify="right")
    results = [result for result in found.results if not best or result.changes != best.changes]
    results += [best] if best else []  # by the rounds that confirmed it
    shown = [result for result in results if result.is_clear_gain]
    for result in sorted(shown, key=lambda result: -result.low)[:_MAX_ROWS]:
        table.add_row(*_cells(result)[: len(table.columns)])
    if table.rows:
        console.print(table)
    console.print(_describe_search(found, results), style="dim")


def describe_noise(found: SearchResult[Any], is_busy: bool) -> str:
    """Return why a cause that no change confirmed may be wrong; "" if it can be trusted.

    is_busy: whether other processes keep the machine busy.
    """
    if found.min_gain > _MAX_NOISE:
        return (
            f"the unchanged training was {_control_words(found)} times as fast as itself, and no "
            "change was shown to gain more than that"
        )
    if found.results and is_busy:
        return "other work keeps this machine busy, and no change was shown to help beside it"
    return ""


def noise_ratio(found: SearchResult[Any], is_busy: bool) -> float:
    """Return how many times too long noise may have made a part of the time."""
    return max(found.min_gain, _BUSY_RATIO if is_busy else 1.0)


def is_beyond_noise(share: float, ratio: float) -> bool:
    """Return whether a part would be most of the time even if noise had made it longer."""
    return share / ratio > 1 - share


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


def search_facts(found: SearchResult[Any]) -> dict[str, Any]:
    """Return what decides which gains count, as plain values."""
    return {"control": found.control, "min_gain": found.min_gain}


def best_ratio(best: TrialResult[Any] | None) -> float:
    """Return the lower end of the best speed-up; 1 without a clear gain."""
    return best.low if best and best.is_clear_gain else 1.0


def _describe_search(found: SearchResult[C], results: list[TrialResult[C]]) -> str:
    """Describe what did not help or was not tried, and how much the baseline's windows vary.

    results: of the tried changes and of the best.
    """
    tried, skipped, rates = found.results, found.skipped, found.baseline_rates
    text = (
        f"{len(tried)} of {len(tried) + len(skipped)} changes tried, each beside the unchanged "
        f"training, which ran at {min(rates):,.0f} to {max(rates):,.0f} images/s"
    )
    if found.control:
        text += (
            f" and {_control_words(found)} times as fast as itself: gains count from "
            f"{ratio_words(found.min_gain)}"
        )
    unshown = [result for result in results if not result.is_clear_gain]
    slower = [f"{result.name} ({_ratio_with_ends(result)})" for result in unshown if result.ratio]
    failed = [f"{result.name} ({result.problem})" for result in unshown if result.problem]
    untried = [change.label for change in skipped]
    no_time = "No time for, unless you raise --seconds"
    lists = (("No gain shown", slower), ("Failed", failed), (no_time, untried))
    return ". ".join(
        [text, *(f"{title}: {listed(names)}" for title, names in lists if names), ""]
    ).strip()


def _control_words(found: SearchResult[Any]) -> str:
    ends = sorted({f"{min(found.control):.2f}", f"{max(found.control):.2f}"}, key=float)
    return " to ".join(ends)  # a single round has one end


def _ratio_with_ends(result: TrialResult[C]) -> str:
    assert result.interval
    ratio, ends = ratio_words(result.ratio), result.interval.ends
    return f"{ratio}, {ends}" if ends else f"{ratio}, 1 round"


def _cells(result: TrialResult[C]) -> list[str | Text]:
    assert result.interval
    ratio = Text(ratio_words(result.ratio), style="green")
    notes = [_LOSSES[result.losses], *(f"({note})" for note in result.notes)]
    rate = f"{result.images_per_second:,.0f}"
    return [result.name, rate, ratio, result.interval.ends, Text(" ".join(notes))]
