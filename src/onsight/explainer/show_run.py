"""Show an explained run: a verdict, tables for people, plain values for programs."""

from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.padding import Padding

from onsight.explainer.bench import FlagChange, RunChange, changed_fields, find_unset
from onsight.explainer.explain_run import RunExplanation
from onsight.explainer.step_costs import fit_costs
from onsight.explainer.step_record import StepRecord
from onsight.text import percent, plural
from onsight_explain.phase_table import describe_utilization, phase_table
from onsight_explain.search import MIN_GAIN, TrialResult
from onsight_explain.search_table import (
    best_ratio,
    is_beyond_noise,
    print_search,
    result_facts,
    search_facts,
)
from onsight_explain.text import step_times

_DATA_BOUND = 0.3  # fraction of the time waiting for data that makes it the bottleneck
_COMPUTE_PHASES = ("forward", "backward", "optimizer")


def print_explanation(explanation: RunExplanation, console: Console) -> None:
    """Print phases, ceilings, the verdict, each flag's gain, and the phases with the best flags."""
    config, before = explanation.config, explanation.before
    height, width, channels = explanation.shape
    console.print(
        f"{config.model} on {explanation.device}: {before.images_per_second:,.0f} images/s "
        f"(batches of {config.batch_size}, {height}x{width}x{channels}; {config.precision}; "
        f"{plural(config.threads, 'thread')}; {before.steps:,} steps in {before.seconds:.1f} s)\n"
    )
    console.print(phase_table(before.phases, before.steps, before.device_phases))
    line = describe_utilization(
        before.flops, before.bytes, before.step_seconds, config.precision, explanation.ceilings
    )
    console.print(f"\n{line}", style="dim")
    if explanation.settings:
        console.print(f"Set in the environment: {explanation.settings.settings}", style="dim")
    console.print(Padding(verdict(explanation), (1, 0)), style="bold")
    found = explanation.search
    if found.results:
        print_search(found, explanation.best, console, with_losses=False)
    if explanation.best and explanation.after:
        console.print(
            f"\nApplied and recorded again, {_describe_changes(explanation.best)}: "
            f"{explanation.after.images_per_second:,.0f} images/s"
        )
        console.print(phase_table(explanation.after.phases, explanation.after.steps))


def explanation_facts(explanation: RunExplanation) -> dict[str, Any]:
    """Return plain values: times in seconds, ratios relative to the unchanged run."""
    best, settings = explanation.best, explanation.settings
    return {
        "verdict": verdict(explanation),
        "cause": cause(explanation),
        "images_per_second": explanation.before.images_per_second,
        "phases": explanation.before.phases,
        "what_ifs": [_tried_facts(tried) for tried in explanation.search.results],
        "best": _tried_facts(best) if best else None,
        "best_ratio": best_ratio(best),
        **search_facts(explanation.search),
        "not_tried": [change.label for change in explanation.search.skipped],
        "rates": explanation.search.baseline_rates,
        "thread_settings": dict(zip(settings.names, settings.values, strict=True))
        if settings
        else {},
        "before": _record_facts(explanation.before),
        "after": _record_facts(explanation.after) if explanation.after else None,
        "ceilings": asdict(explanation.ceilings),
        "device": str(explanation.device),
        "model": explanation.config.model,
        "shape": list(explanation.shape),
        "config": explanation.config.model_dump(),
    }


def verdict(explanation: RunExplanation) -> str:
    """State the cause with its figures, the flags to change, and their gain."""
    if cause(explanation) == "noise":
        return f"Too noisy to tell: {explanation.noise}; measure again when this machine is idle."
    gain = _gain_sentence(explanation)
    if explanation.noise and not _is_shown(explanation):
        gain = (
            f"too noisy to tell what helps: {explanation.noise}; measure again when this machine "
            "is idle"
        )
    return f"{_cause_sentence(explanation)}; {gain}."


def cause(explanation: RunExplanation) -> str:
    """Return the short name of the cause: noise, threads, loader, small-batch, compute or other."""
    before, best = explanation.before, explanation.best
    is_shown = _is_shown(explanation)
    if explanation.noise and not is_shown:
        is_clear = is_beyond_noise(before.share("data"), explanation.noise_ratio)
        return "loader" if is_clear else "noise"
    if best and find_unset(best.changes) and is_shown:
        return "threads"
    if before.share("data") >= _DATA_BOUND:
        return "loader"
    if best and "batch_size" in best.groups:
        return "small-batch"
    return "compute" if before.share(*_COMPUTE_PHASES) >= 0.5 else "other"


def _cause_sentence(explanation: RunExplanation) -> str:
    before = explanation.before
    (step,) = step_times(before.step_seconds)
    match cause(explanation):
        case "threads":
            assert explanation.settings
            return (
                f"In steps of {step}, the compute threads are held back by "
                f"{explanation.settings.settings} in the environment"
            )
        case "loader":
            waiting = percent(before.share("data"))
            return f"Data bound: {waiting} of the time is spent waiting for images"
        case "small-batch":
            share = _fixed_cost_share(explanation)
            much = f"about {percent(share)}" if share else "much"
            return (
                f"Overhead bound: {much} of a step of {step} is a fixed cost (Python, kernel "
                f"launches) that does not depend on the batch size; batches of "
                f"{explanation.config.batch_size} leave {explanation.device} nearly idle"
            )
        case "compute":
            flops = before.flops / before.step_seconds
            peak = explanation.ceilings.peak(explanation.config.precision)
            of_peak = (
                f", at {percent(min(1.0, flops / peak[1]))} of its {peak[0]} matrix peak"
                if peak
                else ""
            )
            share = before.share(*_COMPUTE_PHASES)
            return (
                f"Compute bound: {explanation.device} spends {percent(share)} of the time "
                f"on forward, backward and update{of_peak}"
            )
    outside = percent(before.share("other", "augment", "sync"))
    return f"{outside} of the time is spent outside the network"


def _gain_sentence(explanation: RunExplanation) -> str:
    best = explanation.best
    if best is None:
        count = len(explanation.search.results)
        return (
            f"none of {count} other flags is {MIN_GAIN - 1:.0%} faster"
            if count
            else "no flag was tried"
        )
    flags = _describe_changes(best)
    if not best.is_clear_gain:
        return f"no significant gain: with {flags}, the best, it is {best.interval}"
    note = ""
    if "batch_size" in best.groups:
        note = (
            ", but with fewer updates per epoch it may need a higher --learning-rate and more "
            "epochs; accuracy was not compared"
        )
    return f"with {flags} it is {best.interval}{note}"


def _describe_changes(best: TrialResult[RunChange]) -> str:
    """Return the changes in the order of making them: variables to unset, then flags."""
    unset = find_unset(best.changes)
    flags = " ".join(change.label for change in best.changes if isinstance(change, FlagChange))
    return " and ".join(filter(None, (unset.label if unset else "", flags)))


def _is_shown(explanation: RunExplanation) -> bool:
    return explanation.best is not None and explanation.best.is_clear_gain


def _fixed_cost_share(explanation: RunExplanation) -> float | None:
    """Return the fixed cost as a share of a step, fitted to the steps of several batch sizes."""
    own_size = explanation.config.batch_size
    steps = {own_size: explanation.before.step_seconds}
    for tried in explanation.search.results:
        if tried.groups == {"batch_size"} and not tried.problem:
            (size,) = changed_fields(tried.changes).values()
            steps[size] = size / tried.images_per_second
    costs = fit_costs(steps)
    return costs.fixed_seconds / costs.step_seconds(own_size) if costs else None


def _tried_facts(tried: TrialResult[RunChange]) -> dict[str, Any]:
    unset = find_unset(tried.changes)
    return result_facts(tried) | {
        "changes": changed_fields(tried.changes),
        "unset": list(unset.names) if unset else [],
    }


def _record_facts(record: StepRecord) -> dict[str, Any]:
    facts = asdict(replace(record, timeline=None)) | {"images_per_second": record.images_per_second}
    del facts["timeline"]  # written to a separate file
    return facts
