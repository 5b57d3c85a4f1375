"""Summarize a device comparison in sentences, a table, a plot and JSON values."""

import io
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onsight.errors import OutputError
from onsight.explainer.compare_devices import DeviceComparison
from onsight.explainer.rounds import MIN_LEAD, DeviceCandidate, TimedCell, is_faster, speed_ratio
from onsight.explainer.step_costs import StepCosts, find_crossover
from onsight.files import PNG_MARK, PNG_METADATA, refuse_foreign, write_atomically
from onsight.text import joined, plural
from onsight_explain.text import ratio_words, step_times

_COLUMNS = 4  # candidates that fit into 80 characters
_ROUGH_FIT = 0.15  # max_error above which fitted costs are called approximate
_BAD_FIT = 0.25  # max_error above which no crossover of fitted lines is reported
_PLOT_INCHES, _PLOT_DPI = (8.0, 5.0), 120
_CAUSE_TEXTS = {
    "fixed": ", by a lower fixed cost per step",
    "image": ", by less time per image",
    "": "",
}


# --- Outcomes ---


@dataclass(frozen=True)
class SizeOutcome:
    """The outcome at one batch size."""

    batch_size: int
    winners: tuple[str, ...]  # the fastest candidate, then the candidates level with it
    # The slower candidate to compare the winners with: the comparison's first candidate if it is
    # slower, otherwise the fastest of the slower ones.
    rival: str = ""
    ratio: float = 1.0  # the speed of the fastest candidate, relative to the rival
    interval: str = ""  # 95% interval of the ratio; empty after a single round
    cause: str = ""  # cost behind most of the difference: "fixed", "image", or "" if unknown


@dataclass(frozen=True)
class Crossover:
    """The batch size from which on one candidate is faster than another."""

    batch_size: int
    slower: str
    faster: str


def find_outcomes(comparison: DeviceComparison) -> list[SizeOutcome]:
    """Return the outcome at each batch size with at least one timed candidate."""
    outcomes = [_find_outcome(comparison, size) for size in comparison.batch_sizes]
    return [outcome for outcome in outcomes if outcome.winners]


def find_crossovers(comparison: DeviceComparison) -> list[Crossover]:
    """Return the batch sizes at which the first candidate and another change places.

    A crossover of two fitted lines counts only within the sizes timed for both candidates, and only
    if the measured steps do not contradict it.
    """
    first, *others = (candidate.name for candidate in comparison.candidates)
    pairs = [pair for other in others for pair in ((first, other), (other, first))]
    crossovers = (_find_crossover(comparison, slower, faster) for slower, faster in pairs)
    return [crossover for crossover in crossovers if crossover]


def _find_outcome(comparison: DeviceComparison, size: int) -> SizeOutcome:
    timed = [cell for cell in comparison.row(size) if not cell.problem]
    if not timed:
        return SizeOutcome(size, ())
    ranked = sorted(timed, key=lambda cell: cell.step_seconds)
    fastest = ranked[0]
    winners = tuple(cell.candidate.name for cell in ranked if not is_faster(fastest, cell))
    behind = [cell for cell in timed if is_faster(fastest, cell)]
    if not behind:
        return SizeOutcome(size, winners)
    first = [cell for cell in behind if cell.candidate == comparison.candidates[0]]
    rival = min(first or behind, key=lambda cell: cell.step_seconds)
    ratio = speed_ratio(fastest, rival)
    costs = comparison.costs[winners[0]], comparison.costs[rival.candidate.name]
    cause = _find_cause(*costs, size)
    return SizeOutcome(size, winners, rival.candidate.name, ratio.ratio, ratio.ends, cause)


def _find_cause(winner: StepCosts | None, rival: StepCosts | None, size: int) -> str:
    if winner is None or rival is None:
        return ""
    fixed = rival.fixed_seconds - winner.fixed_seconds
    images = size * (rival.image_seconds - winner.image_seconds)
    if fixed + images <= 0:  # the fitted lines contradict the measurement
        return ""
    return "fixed" if fixed >= images else "image"


def _find_crossover(comparison: DeviceComparison, slower: str, faster: str) -> Crossover | None:
    slow_costs, fast_costs = comparison.costs[slower], comparison.costs[faster]
    slow_cells, fast_cells = (
        [cell for cell in comparison.cells if cell.candidate.name == name]
        for name in (slower, faster)
    )
    pairs = zip(slow_cells, fast_cells, strict=True)
    timed = [(slow, fast) for slow, fast in pairs if not slow.problem and not fast.problem]
    if slow_costs is None or fast_costs is None or not timed:
        return None
    if max(slow_costs.max_error, fast_costs.max_error) > _BAD_FIT:
        return None
    (smallest_slow, smallest_fast), (largest_slow, largest_fast) = timed[0], timed[-1]
    size = find_crossover(slow_costs, fast_costs, smallest_slow.batch_size, largest_slow.batch_size)
    if size is None:
        return None
    is_crossed = is_faster(smallest_slow, smallest_fast) and is_faster(largest_fast, largest_slow)
    contradictions = [
        is_faster(slow, fast) if slow.batch_size >= size else is_faster(fast, slow)
        for slow, fast in timed
    ]
    return Crossover(size, slower, faster) if is_crossed and not any(contradictions) else None


# --- Sentences ---


def verdict(comparison: DeviceComparison) -> str:
    """Summarize the comparison in one sentence."""
    outcomes = find_outcomes(comparison)
    if not outcomes:
        return "Nothing could be timed."
    groups = groupby(outcomes, key=lambda outcome: (outcome.winners, bool(outcome.rival)))
    return "Fastest " + "; ".join(_range_sentence(list(group)) for _, group in groups) + "."


def outcome_sentence(comparison: DeviceComparison, outcome: SizeOutcome) -> str:
    """State which candidate is fastest at a batch size, by what ratio and why."""
    if outcome.rival:
        reason = _explain_lead(comparison, outcome) or "the fitted costs do not explain it"
        ends = f" ({outcome.interval})" if outcome.interval else ""
        lead = f"{ratio_words(outcome.ratio)}{ends}"
        return f"{_winners_text(outcome)} wins {lead} over {outcome.rival}: {reason}"
    if len(outcome.winners) > 1:
        names = joined(outcome.winners)
        return f"no winner: {names} are level (within the noise or {MIN_LEAD - 1:.0%})"
    (name,) = outcome.winners
    costs = comparison.costs[name]
    if costs is None:
        return f"only {name} was timed"
    share = costs.fixed_seconds / costs.step_seconds(outcome.batch_size)
    (fixed,) = step_times(costs.fixed_seconds)
    return f"only {name} was timed; {share:.0%} of its step is a fixed cost ({fixed})"


def crossover_sentence(crossover: Crossover) -> str:
    """State where one candidate becomes faster than another."""
    return (
        f"By the fitted costs, {crossover.faster} overtakes {crossover.slower} at about "
        f"batch {crossover.batch_size:,}."
    )


def _explain_lead(comparison: DeviceComparison, outcome: SizeOutcome) -> str:
    """Compare the cost behind most of the difference; "" if the fitted costs do not show one."""
    winner, rival = comparison.costs[outcome.winners[0]], comparison.costs[outcome.rival]
    if not outcome.cause or winner is None or rival is None:
        return ""
    about = "about " if max(winner.max_error, rival.max_error) > _ROUGH_FIT else ""
    if outcome.cause == "image":
        winner_time, rival_time = step_times(winner.image_seconds, rival.image_seconds)
        return f"{about}{winner_time} per image against {rival_time}"
    share = rival.fixed_seconds / rival.step_seconds(outcome.batch_size)
    winner_time, rival_time = step_times(winner.fixed_seconds, rival.fixed_seconds)
    return (
        f"{about}{share:.0%} of a step of {outcome.rival} is a fixed cost, "
        f"{rival_time} for any batch size, against {winner_time}"
    )


def _range_sentence(group: list[SizeOutcome]) -> str:
    """Summarize consecutive batch sizes with the same winners."""
    sizes = [outcome.batch_size for outcome in group]
    where = f"at batch {sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")
    best = max(group, key=lambda outcome: outcome.ratio)
    if best.rival:
        up_to = "up to " if len(sizes) > 1 else ""
        lead = f"{up_to}{ratio_words(best.ratio)} over {best.rival}{_CAUSE_TEXTS[best.cause]}"
        return f"{where}: {' or '.join(best.winners)} ({lead})"
    if len(best.winners) == 1:
        return f"{where}: {best.winners[0]}, the only one timed"
    return f"{where}: no clear winner"


def _winners_text(outcome: SizeOutcome) -> str:
    first, *level = outcome.winners
    return f"{first}, level with {joined(level)}," if level else first


# --- Console and JSON ---


def print_comparison(comparison: DeviceComparison, console: Console) -> None:
    """Print the table, a sentence for each batch size, and the verdict."""
    height, width, channels = comparison.shape
    console.print(
        f"images/s of training {comparison.model} on {height}x{width}x{channels} images"
        " (ratio to the first column)\n"
    )
    first, *others = comparison.candidates
    for start in range(0, max(1, len(others)), _COLUMNS - 1):
        console.print(_table(comparison, [first, *others[start : start + _COLUMNS - 1]]))
        console.print()
    console.print(_method_note(comparison), style="dim")
    console.print()
    lines = Table.grid(padding=(0, 1))
    for outcome in find_outcomes(comparison):
        lines.add_row(f"batch {outcome.batch_size:,}:", outcome_sentence(comparison, outcome))
    console.print(lines)
    for crossover in find_crossovers(comparison):
        console.print(crossover_sentence(crossover))
    console.print(Padding(verdict(comparison), (1, 0, 0, 0)), style="bold")


def comparison_facts(comparison: DeviceComparison) -> dict[str, Any]:
    """Return the comparison as JSON values. `spread`: least and most seconds per step."""
    rows = [_row_facts(comparison, cell) for cell in comparison.cells]
    best = max(rows, key=lambda row: row["ratio"] or 0.0)
    return {
        "verdict": verdict(comparison),
        "outcomes": [
            asdict(outcome) | {"sentence": outcome_sentence(comparison, outcome)}
            for outcome in find_outcomes(comparison)
        ],
        "rows": rows,
        "fits": {name: costs and _fit_facts(costs) for name, costs in comparison.costs.items()},
        "crossovers": [asdict(crossover) for crossover in find_crossovers(comparison)],
        "best_ratio": best["ratio"],
        "device": best["device"],
        "model": comparison.model,
        "shape": list(comparison.shape),
    }


def _fit_facts(costs: StepCosts) -> dict[str, float]:
    return {
        "fixed_seconds": costs.fixed_seconds,
        "image_seconds": costs.image_seconds,
        "miss": costs.max_error,
    }


def _row_facts(comparison: DeviceComparison, cell: TimedCell) -> dict[str, Any]:
    candidate = cell.candidate
    timed = not cell.problem
    ratio = comparison.ratio(cell)
    facts = ratio.facts() if ratio else {}
    return {
        "candidate": candidate.name,
        "device": str(candidate.device),
        "threads": candidate.threads,
        "precision": candidate.precision,
        "batch_size": cell.batch_size,
        "images_per_second": cell.images_per_second if timed else None,
        "ratio": facts.get("ratio"),
        "ratio_interval": [facts.get("low"), facts.get("high")] if ratio else None,
        "step_seconds": cell.step_seconds if timed else None,
        "spread": [min(cell.rounds), max(cell.rounds)] if timed else None,
        "rounds": cell.rounds,
        "problem": cell.problem or None,
    }


def _table(comparison: DeviceComparison, shown: list[DeviceCandidate]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("batch", justify="right", vertical="bottom")
    for candidate in shown:
        table.add_column(_header(candidate), justify="right", vertical="bottom")
    winners = {
        outcome.batch_size: outcome.winners
        for outcome in find_outcomes(comparison)
        if outcome.rival
    }
    for size in comparison.batch_sizes:
        cells = [cell for cell in comparison.row(size) if cell.candidate in shown]
        texts = (
            Text(
                _speed_text(comparison, cell),
                "green" if cell.candidate.name in winners.get(size, ()) else "",
            )
            for cell in cells
        )
        table.add_row(f"{size:,}", *texts)
    table.add_row()
    costs = [comparison.costs[candidate.name] for candidate in shown]
    table.add_row(
        "fixed per step", *_cost_texts([cost.fixed_seconds if cost else None for cost in costs])
    )
    table.add_row(
        "per image", *_cost_texts([cost.image_seconds if cost else None for cost in costs])
    )
    return table


def _header(candidate: DeviceCandidate) -> str:
    lines = [] if "thread" in candidate.name else [candidate.name]
    if candidate.device.type == "cpu":
        lines.append(plural(candidate.threads, "thread"))
    return "\n".join([*lines, candidate.precision])


def _speed_text(comparison: DeviceComparison, cell: TimedCell) -> str:
    if cell.problem:
        return cell.problem.partition(":")[0]
    speed, ratio = f"{cell.images_per_second:,.0f}", comparison.ratio(cell)
    is_first = cell.candidate == comparison.candidates[0]
    return speed if is_first or ratio is None else f"{speed} {ratio_words(ratio.ratio):>6}"


def _cost_texts(seconds: list[float | None]) -> list[str]:
    texts = iter(step_times(*(value for value in seconds if value is not None)))
    return ["-" if value is None else next(texts) for value in seconds]


def _method_note(comparison: DeviceComparison) -> str:
    rounds = max(len(cell.rounds) for cell in comparison.cells)
    text = (
        f"Medians of {rounds} interleaved rounds; ratios are geometric means of paired "
        "rounds, with 95% intervals in parentheses. A step's time is fitted as a fixed cost per "
        "step (Python, kernel launches, threads waiting for one another) plus a cost per image"
    )
    errors = {name: costs.max_error for name, costs in comparison.costs.items() if costs}
    if not errors:
        return f"{text}; too few batch sizes were timed for this."
    worst = max(errors, key=lambda name: errors[name])
    return f"{text}; every measured step is within {errors[worst]:.0%} of the fit ({worst})."


# --- Plot ---


def check_plot_name(path: Path) -> None:
    """Raise OutputError unless the name ends in .png, or for a file that Onsight did not write."""
    if path.suffix.lower() != ".png":
        raise OutputError(f"--save-plot writes a PNG file, so its name must end in .png: {path}")
    refuse_foreign(path, PNG_MARK, "a plot", "--save-plot")


def draw_comparison(comparison: DeviceComparison, path: Path) -> None:
    """Plot images/s by batch size, with the spread of each candidate. Raises DiskError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    figure = Figure(_PLOT_INCHES, layout="constrained")
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
    figure.savefig(data, format="png", dpi=_PLOT_DPI, metadata=PNG_METADATA)
    write_atomically(path, data.getvalue())
