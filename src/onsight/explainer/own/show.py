"""Shows an explained run: tables and sentences for people, plain values for programs."""

from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onsight.explainer.gain import GAIN
from onsight.explainer.own.explain import FlagTried, OwnExplanation
from onsight.explainer.own.record import StepRecord
from onsight.explainer.own.words import cause, verdict
from onsight.explainer.phase_table import phase_table, reached
from onsight.words import plural, ratio_words


def print_explained_run(found: OwnExplanation, console: Console) -> None:
    """Phases, ceilings, the verdict, what each flag gave, and the phases with the best flags."""
    config, before = found.config, found.before
    height, width, channels = found.shape
    console.print(
        f"{config.model} on {found.device}: {before.images_per_second:,.0f} images/s "
        f"(batches of {config.batch_size}, {height}x{width}x{channels}; {config.precision}; "
        f"{plural(config.threads, 'thread')}; {before.steps:,} steps in {before.seconds:.1f} s)\n"
    )
    console.print(phase_table(before.phases, before.steps, before.device_phases))
    line = reached(
        before.flops, before.bytes, before.step_seconds, config.precision, found.ceilings
    )
    console.print(f"\n{line}", style="dim")
    console.print(Padding(verdict(found), (1, 0)), style="bold")
    if found.tried:
        console.print(_table(found))
    if found.best and found.after:
        console.print(
            f"\nApplied and recorded again, {found.best.change.flags}: "
            f"{found.after.images_per_second:,.0f} images/s"
        )
        console.print(phase_table(found.after.phases, found.after.steps))


def facts(found: OwnExplanation) -> dict[str, Any]:
    """The explanation as plain values: times in seconds, ratios relative to the run as it is."""
    best = found.best
    return {
        "verdict": verdict(found),
        "cause": cause(found),
        "images_per_second": found.before.images_per_second,
        "phases": found.before.phases,
        "what_ifs": [_tried_facts(one) for one in found.tried],
        "best": _tried_facts(best) if best else None,
        "best_ratio": best.ratio if best else 1.0,
        "before": _record_facts(found.before),
        "after": _record_facts(found.after) if found.after else None,
        "ceilings": asdict(found.ceilings),
        "device": str(found.device),
        "model": found.config.model,
        "shape": list(found.shape),
        "config": found.config.model_dump(),
    }


def _table(found: OwnExplanation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what if, timed in turns")
    for name in ("images/s", "ratio"):
        table.add_column(name, justify="right")
    rows = sorted(found.tried, key=lambda one: -one.ratio)
    for one in rows:
        table.add_row(*_cells(one))
    if found.best and found.best not in found.tried:
        table.add_row(*_cells(found.best))
    return table


def _cells(one: FlagTried) -> list[str | Text]:
    if one.problem:
        return [one.change.flags, one.problem, ""]
    style = "green" if one.ratio >= GAIN else ""
    rate = f"{one.images_per_second:,.0f}"
    return [one.change.flags, rate, Text(ratio_words(one.ratio), style=style)]


def _tried_facts(one: FlagTried) -> dict[str, Any]:
    return {
        "name": one.change.flags,
        "changes": one.change.fields,
        "images_per_second": one.images_per_second or None,
        "ratio": one.ratio or None,
        "problem": one.problem or None,
    }


def _record_facts(record: StepRecord) -> dict[str, Any]:
    facts = asdict(replace(record, timeline=None)) | {"images_per_second": record.images_per_second}
    del facts["timeline"]  # in a file of its own
    return facts
