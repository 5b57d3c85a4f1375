"""Shows an explained script: tables and sentences for people, plain values for programs."""

import statistics
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onsight_explain.delivery.delivery import Delivery, FixProof
from onsight_explain.delivery.fixed_script import SuggestedChange
from onsight_explain.diagnosis.explain import Explanation
from onsight_explain.json_dataclasses import to_plain
from onsight_explain.phase_table import describe_utilization, phase_table
from onsight_explain.process.file_guard import describe_unchanged
from onsight_explain.search import TrialResult
from onsight_explain.search_table import (
    best_ratio,
    describe_search,
    make_results_table,
    result_facts,
)
from onsight_explain.text import plural
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import WhatIf

_LOSSES = {
    "same": "the losses of the first steps are the same",
    "close": "the losses of the first steps agree within 2%",
    "alike": "the losses of the first steps are similar",
    "other": "the losses of the first steps differ",
    "not comparable": "the losses of the first steps cannot be compared",
}
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print phases, verdict, the gain of each change, the lines to change, and the mistakes."""
    trace = explanation.trace
    shape = "x".join(str(side) for side in trace.shape)
    epochs = f", {plural(trace.epochs, 'whole epoch')}" if trace.epochs else ""
    console.print(
        f"{explanation.script.name}: {explanation.rate:,.0f} images/s on {trace.device} "
        f"(batches of {trace.batch_size}, {shape}; {trace.precision}; "
        f"{plural(trace.threads, 'thread')}; {trace.steps:,} steps in {trace.seconds:.1f} s"
        f"{epochs}; {trace.startup_seconds:.1f} s from its start to its first step)\n"
    )
    console.print(phase_table(trace.phases, trace.steps, trace.device_phases))
    if explanation.ceilings and trace.flops:
        utilization = describe_utilization(
            trace.flops,
            trace.bytes,
            trace.seconds / trace.steps,
            trace.precision,
            explanation.ceilings,
        )
        console.print(f"\n{utilization}", style="dim")
    if trace.placement:
        console.print(f"placement: {trace.placement}", style="dim")
    for problem in trace.misplaced:
        console.print(f"placement: {problem}", style="yellow")
    console.print(Padding(explanation.verdict, (1, 0)), style="bold")
    if explanation.tried:
        _print_tried(explanation, console)
    for remark in trace.remarks:
        console.print(f"{remark[0].upper()}{remark[1:]}.", style="dim")
    if explanation.unchanged:
        sentence = describe_unchanged(explanation.script.name, explanation.unchanged)
        console.print(sentence, style="dim")
    best = explanation.best
    is_shown = best and best.interval and best.interval.is_clear_gain
    if best and is_shown and not explanation.delivery:  # its diff shows the lines
        console.print(f"\nFor {best.interval}, change")
        for line in explanation.lines:
            console.print(Padding(_line_text(line), (0, 0, 0, 2)))
    _print_findings(explanation, console)
    if explanation.delivery:
        print_delivery(explanation.delivery, console)


def facts(explanation: Explanation) -> dict[str, Any]:
    """Return plain values: times in seconds, ratios relative to the unchanged script."""
    trace, best = explanation.trace, explanation.best
    ceilings, delivery = explanation.ceilings, explanation.delivery
    return {
        "verdict": explanation.verdict,
        "cause": explanation.cause.name,
        "images_per_second": explanation.rate,
        "seconds": trace.seconds,
        "steps": trace.steps,
        "phases": trace.phases,
        "device_phases": trace.device_phases,
        "what_ifs": [_tried_facts(result) for result in explanation.tried],
        "best": _tried_facts(best) if best else None,
        "best_ratio": best_ratio(best),
        "not_tried": [what_if.label for what_if in explanation.skipped],
        "rates": explanation.rates,
        "explained_in_seconds": explanation.seconds,
        "lines": [
            {"file": line.site and line.site.file, "line": line.site and line.site.line}
            | {"text": line.text}
            for line in explanation.lines
        ],
        "unchanged_files": [str(path) for path in explanation.unchanged],
        "fixed_script": delivery.facts() if delivery else None,
        "findings": [finding.to_dict() for finding in explanation.findings],
        "ceilings": asdict(ceilings) if ceilings else None,
        "flops_per_step": trace.flops,
        "bytes_per_step": trace.bytes,
        "trace": to_plain(trace),
        "device": trace.device,
    }


def print_delivery(delivery: Delivery, console: Console) -> None:
    """Print the diff, the changes left to the user, and the result of running it."""
    console.print()
    for row in delivery.fixed.diff(delivery.target.name).splitlines():
        console.print(Text(row, style=_DIFF_COLOURS.get(row[:1], "")), soft_wrap=True)
    console.print()
    for line in delivery.fixed.lines:
        if line.left:
            where = f"{line.site}: " if line.site else ""
            console.print(f"{where}left to you ({line.left}): {line.text}", style="yellow")
    style = "bold" if delivery.is_sound else "bold red"
    console.print(describe_delivery(delivery), style=style)


def describe_delivery(delivery: Delivery) -> str:
    """Return the lines on the written file and the result of running it."""
    name, script = delivery.target.name, delivery.fixed.script.name
    if delivery.proof is None:
        return (
            f"{name} was written, but computes the same as {script}: its comments list what to "
            "change"
        )
    if delivery.proof.problem:
        return f"{name} was not written: {delivery.proof.problem}"
    result = f"{_rates(delivery.proof, script, name)}; {_LOSSES[delivery.proof.losses]}"
    if not delivery.is_sound:
        return f"{name} was not written: {result}"
    outside = "".join(f" {text[0].upper()}{text[1:]}." for text in delivery.fixed.outside)
    return f"{delivery.target} was written. {result}.{outside}"


def _print_tried(explanation: Explanation, console: Console) -> None:
    tried = explanation.tried
    table = make_results_table(tried, explanation.best, explanation.rate, with_losses=True)
    console.print(table)
    method = describe_search(tried, explanation.skipped, explanation.rates)
    console.print(f"\n{method}; {explanation.seconds:.0f} s in total", style="dim")


def _line_text(line: SuggestedChange) -> Text:
    where = f"{line.site}: " if line.site else ""
    return Text(where, style="bold").append(line.text, style="not bold")


def _print_findings(explanation: Explanation, console: Console) -> None:
    findings = explanation.findings
    if not findings:
        return
    console.print(f"\nReading the script: {plural(len(findings), 'thing')} to fix")
    for finding in findings:
        site = Site(file=str(finding.file), line=finding.line)
        console.print(Padding(f"{site}: {finding.problem}", (0, 0, 0, 2)))
        console.print(Padding(finding.why, (0, 0, 0, 6)), style="dim")
        for row in finding.fixed.splitlines():
            console.print(Padding(Text(row, style="green"), (0, 0, 0, 6)))


def _tried_facts(result: TrialResult[WhatIf]) -> dict[str, Any]:
    changes = {change.name: change.value for change in result.changes}
    return result_facts(result) | {"changes": changes}


def _rates(proof: FixProof, script: str, name: str) -> str:
    rounds = proof.rounds
    before, after = statistics.median(rounds.baseline), statistics.median(rounds.changed)
    ratio = f"{rounds.interval}"
    if not rounds.interval.is_clear_gain:
        ratio = f"no gain was shown ({rounds.interval})"
    return f"Run alternately, {script} made {before:,.0f} images/s and {name} {after:,.0f}: {ratio}"
