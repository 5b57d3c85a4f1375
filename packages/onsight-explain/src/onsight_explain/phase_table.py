"""The table of phases, and a line on how close a step comes to the device's limits."""

from collections.abc import Callable

from rich.table import Table

from onsight_explain.ceilings import Ceilings
from onsight_explain.text import flops_words, percent, rate_words, step_times
from onsight_explain.tracing.clock import PHASES

_BAR_WIDTH = 16  # characters
_MIN_SHARE = 0.005  # fraction of the time; smaller phases are not listed


def phase_table(
    phases: dict[str, float], steps: int, device_phases: dict[str, float] | None = None
) -> Table:
    """Return a row for each phase, the largest first: its share of the time and time per step.

    The phases are in seconds; `device_phases` are those on the accelerator's timeline.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("where the time goes")
    table.add_column("share", justify="right")
    table.add_column("per step", justify="right")
    if device_phases:
        table.add_column("on the device", justify="right")
    table.add_column("")
    total = sum(phases.values()) or 1.0
    device_total = sum((device_phases or {}).values()) or 1.0
    ranked = sorted(phases.items(), key=lambda item: -item[1])
    listed = [(name, seconds) for name, seconds in ranked if seconds >= _MIN_SHARE * total]
    times = step_times(*(seconds / max(1, steps) for _, seconds in listed))
    for (name, seconds), step_time in zip(listed, times, strict=True):
        cells = [PHASES[name], percent(seconds / total), step_time]
        if device_phases:
            cells.append(percent(device_phases.get(name, 0.0) / device_total))
        table.add_row(*cells, "█" * round(_BAR_WIDTH * seconds / total))
    return table


def describe_utilization(
    flops_per_step: int,
    bytes_per_step: int,
    step_seconds: float,
    precision: str,
    ceilings: Ceilings,
) -> str:
    """Return how much of the device's ceilings a step reaches, in one line."""
    flops = flops_per_step / step_seconds
    traffic = bytes_per_step / step_seconds
    name, peak = ceilings.peak(precision) or ("fp32", ceilings.flops_per_second["fp32"])
    copy_rate = ceilings.copy_bytes_per_second
    arithmetic = _compare(flops, peak, flops_words, f"a large {name} matrix product here")
    memory = _compare(traffic, copy_rate, rate_words, "a large copy", ", thanks to caches")
    return f"arithmetic: {arithmetic}; memory traffic of the operations: {memory}"


def _compare(
    rate: float, ceiling: float, words: Callable[[float], str], what: str, excuse: str = ""
) -> str:
    """Compare a rate with its ceiling in words. excuse: why it may exceed the ceiling."""
    if rate > ceiling and words(rate) != words(ceiling):
        return f"{words(rate)}, more than the {words(ceiling)} of {what}{excuse}"
    return f"{words(rate)}, {percent(min(1.0, rate / ceiling))} of the {words(ceiling)} of {what}"
