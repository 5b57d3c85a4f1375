"""Shows an explained run: tables and sentences for people, plain values for programs."""

from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.padding import Padding

from onsight.explainer.own.changes import RunChange, fields_of, unset_among
from onsight.explainer.own.explain import OwnExplanation
from onsight.explainer.own.record import StepRecord
from onsight.explainer.own.words import cause, verdict, with_words
from onsight.words import plural
from onsight_explain.phase_table import describe_utilization, phase_table
from onsight_explain.search import TrialResult
from onsight_explain.search_table import (
    best_ratio,
    describe_search,
    make_results_table,
    result_facts,
)


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
    line = describe_utilization(
        before.flops, before.bytes, before.step_seconds, config.precision, found.ceilings
    )
    console.print(f"\n{line}", style="dim")
    if found.settings:
        console.print(f"Set in the environment: {found.settings.settings}", style="dim")
    console.print(Padding(verdict(found), (1, 0)), style="bold")
    if found.tried:
        console.print(make_results_table(found.tried, found.best, found.rate, with_losses=False))
        said = describe_search(found.tried, found.left_out, found.rates)
        console.print(f"\n{said}", style="dim")
    if found.best and found.after:
        console.print(
            f"\nApplied and recorded again, {with_words(found.best)}: "
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
        "best_ratio": best_ratio(best),
        "not_tried": [one.label for one in found.left_out],
        "rates": found.rates,
        "thread_settings": dict(zip(found.settings.names, found.settings.values, strict=True))
        if found.settings
        else {},
        "before": _record_facts(found.before),
        "after": _record_facts(found.after) if found.after else None,
        "ceilings": asdict(found.ceilings),
        "device": str(found.device),
        "model": found.config.model,
        "shape": list(found.shape),
        "config": found.config.model_dump(),
    }


def _tried_facts(one: TrialResult[RunChange]) -> dict[str, Any]:
    unset = unset_among(one.changes)
    return result_facts(one) | {
        "changes": fields_of(one.changes),
        "unset": list(unset.names) if unset else [],
    }


def _record_facts(record: StepRecord) -> dict[str, Any]:
    facts = asdict(replace(record, timeline=None)) | {"images_per_second": record.images_per_second}
    del facts["timeline"]  # in a file of its own
    return facts
