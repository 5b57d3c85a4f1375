"""Shows a comparison: a table with sentences for people, plain values for programs."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onsight.explainer.compare.candidates import Candidate
from onsight.explainer.compare.measure import Comparison
from onsight.explainer.compare.outcome import crossovers, outcomes
from onsight.explainer.compare.rounds import Cell
from onsight.explainer.compare.words import crossing, sentence, verdict
from onsight.words import plural
from onsight_explain.text import ratio_words, step_times

_COLUMNS = 4  # candidates that fit side by side into 80 characters


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The table, a sentence for each batch size, and the verdict."""
    height, width, channels = comparison.shape
    console.print(
        f"images/s of training {comparison.model} on {height}x{width}x{channels} images"
        " (ratio to the first column)\n"
    )
    first, *others = comparison.candidates
    for start in range(0, max(1, len(others)), _COLUMNS - 1):
        console.print(_table(comparison, [first, *others[start : start + _COLUMNS - 1]]))
        console.print()
    console.print(_note(comparison), style="dim")
    console.print()
    lines = Table.grid(padding=(0, 1))
    for outcome in outcomes(comparison):
        lines.add_row(f"batch {outcome.batch_size:,}:", sentence(comparison, outcome))
    console.print(lines)
    for found in crossovers(comparison):
        console.print(crossing(found))
    console.print(Padding(verdict(comparison), (1, 0, 0, 0)), style="bold")


def facts(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values. spread: the least and most seconds per step."""
    rows = [_row(comparison, cell) for cell in comparison.cells]
    best = max(rows, key=lambda row: row["ratio"] or 0.0)
    return {
        "verdict": verdict(comparison),
        "outcomes": [
            asdict(one) | {"sentence": sentence(comparison, one)} for one in outcomes(comparison)
        ],
        "rows": rows,
        "fits": {name: fit and asdict(fit) for name, fit in comparison.fits.items()},
        "crossovers": [asdict(found) for found in crossovers(comparison)],
        "best_ratio": best["ratio"],
        "device": best["device"],
        "model": comparison.model,
        "shape": list(comparison.shape),
    }


def _row(comparison: Comparison, cell: Cell) -> dict[str, Any]:
    candidate = cell.candidate
    timed = not cell.problem
    return {
        "candidate": candidate.name,
        "device": str(candidate.device),
        "threads": candidate.threads,
        "precision": candidate.precision,
        "batch_size": cell.batch_size,
        "images_per_second": cell.images_per_second if timed else None,
        "ratio": comparison.ratio(cell),
        "step_seconds": cell.step_seconds if timed else None,
        "spread": [min(cell.rounds), max(cell.rounds)] if timed else None,
        "rounds": cell.rounds,
        "problem": cell.problem or None,
    }


def _table(comparison: Comparison, shown: list[Candidate]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("batch", justify="right", vertical="bottom")
    for candidate in shown:
        table.add_column(_header(candidate), justify="right", vertical="bottom")
    winners = {one.batch_size: one.winners for one in outcomes(comparison) if one.rival}
    for size in comparison.batch_sizes:
        cells = [cell for cell in comparison.row(size) if cell.candidate in shown]
        texts = (
            Text(
                _figure(comparison, cell),
                "green" if cell.candidate.name in winners.get(size, ()) else "",
            )
            for cell in cells
        )
        table.add_row(f"{size:,}", *texts)
    table.add_row()
    fits = [comparison.fits[candidate.name] for candidate in shown]
    table.add_row("fixed per step", *_costs([fit.fixed_seconds if fit else None for fit in fits]))
    table.add_row("per image", *_costs([fit.image_seconds if fit else None for fit in fits]))
    return table


def _header(candidate: Candidate) -> str:
    lines = [] if "thread" in candidate.name else [candidate.name]
    if candidate.device.type == "cpu":
        lines.append(plural(candidate.threads, "thread"))
    return "\n".join([*lines, candidate.precision])


def _figure(comparison: Comparison, cell: Cell) -> str:
    if cell.problem:
        return cell.problem.partition(":")[0]
    speed, ratio = f"{cell.images_per_second:,.0f}", comparison.ratio(cell)
    is_first = cell.candidate == comparison.candidates[0]
    return speed if is_first or ratio is None else f"{speed} {ratio_words(ratio):>6}"


def _costs(seconds: list[float | None]) -> list[str]:
    words = iter(step_times(*(value for value in seconds if value is not None)))
    return ["-" if value is None else next(words) for value in seconds]


def _note(comparison: Comparison) -> str:
    rounds = max(len(cell.rounds) for cell in comparison.cells)
    text = (
        f"Medians of {rounds} interleaved rounds. A step's time is fitted as a fixed cost per "
        "step (Python, kernel launches, threads waiting for one another) plus a cost per image"
    )
    misses = {name: fit.miss for name, fit in comparison.fits.items() if fit}
    if not misses:
        return f"{text}; too few batch sizes were timed for this."
    worst = max(misses, key=lambda name: misses[name])
    return f"{text}; every measured step is within {misses[worst]:.0%} of the fit ({worst})."
