"""Shows an explained script: tables and sentences for people, plain values for programs."""

import statistics
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onsight_explain.delivery.delivery import Delivery, FixProof
from onsight_explain.delivery.fixed_script import FixedScript
from onsight_explain.diagnosis.explain import Explanation
from onsight_explain.json_dataclasses import to_plain
from onsight_explain.phase_table import describe_utilization, phase_table
from onsight_explain.process.file_guard import describe_unchanged
from onsight_explain.search import TrialResult
from onsight_explain.search_table import (
    best_ratio,
    print_search,
    result_facts,
    search_facts,
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
_LONG_SETUP_SECONDS = 1.0
_SHOWN_ROWS = 3  # of an addition on a screen, if the rest of it is elsewhere
_SHOWN_FINDINGS = 3  # the rest is counted
_DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print the verdict, phases, the gain of each change, the lines to change, and the mistakes."""
    trace = explanation.trace
    shape = "x".join(str(side) for side in trace.shape)
    epochs = f", {plural(trace.epochs, 'whole epoch')}" if trace.epochs else ""
    console.print(Padding(explanation.verdict, (0, 0, 1, 0)), style="bold")
    console.print(
        f"{explanation.script.name}: {explanation.rate:,.0f} images/s on {trace.device} "
        f"(batches of {trace.batch_size}, {shape}; {trace.precision}; "
        f"{plural(trace.threads, 'thread')}; set-up of {trace.startup_seconds:.1f} s, then "
        f"{trace.steps:,} steps in {trace.seconds:.1f} s{epochs})"
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
        console.print(utilization, style="dim")
    if trace.placement and trace.device != "cpu":
        console.print(f"placement: {trace.placement}", style="dim")
    for problem in trace.misplaced:
        console.print(f"placement: {problem}", style="yellow")
    console.print()
    if explanation.search.results:
        print_search(explanation.search, explanation.best, console, with_losses=True)
    for remark in trace.remarks:
        console.print(f"{remark[0].upper()}{remark[1:]}.", style="dim")
    if explanation.unchanged:
        sentence = describe_unchanged(explanation.script.name, explanation.unchanged)
        console.print(sentence, style="dim")
    if explanation.delivery:
        print_delivery(explanation.delivery, console)
    elif explanation.fixed:
        console.print("\nThe lines to edit (--write FILE writes the edited script):")
        _print_fixed(explanation.fixed, f"edited {explanation.script.name}", console)
    for caution in explanation.cautions:
        console.print(caution, style="yellow")
    _print_findings(explanation, console)


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
        "what_ifs": [_tried_facts(result) for result in explanation.search.results],
        "best": _tried_facts(best) if best else None,
        "best_ratio": best_ratio(best),
        **search_facts(explanation.search),
        "setup_seconds": trace.startup_seconds,
        "not_tried": [what_if.label for what_if in explanation.search.skipped],
        "rates": explanation.rates,
        "explained_in_seconds": explanation.seconds,
        "lines": [
            {"file": line.site and line.site.file, "line": line.site and line.site.line}
            | {"text": line.text}
            for line in (explanation.fixed.lines if explanation.fixed else [])
        ],
        "cautions": explanation.cautions,
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
    is_whole = not delivery.is_sound  # then there is no file to read it in
    _print_fixed(delivery.fixed, delivery.target.name, console, is_whole)
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
    return f"{delivery.target} was written. {result}.{_setup_words(delivery.proof, script)}"


def _print_fixed(fixed: FixedScript, name: str, console: Console, is_whole: bool = False) -> None:
    """Print the changed lines, and what is left to the user.

    is_whole: whether long additions are printed in full on a screen too, and not only on a page.
    """
    is_whole = is_whole or console.record
    for is_added, group in groupby(
        fixed.diff(name, context=0).splitlines(), lambda row: row.startswith("+")
    ):
        rows = list(group)
        is_long = is_added and len(rows) > _SHOWN_ROWS + 1
        hidden = rows[_SHOWN_ROWS:] if is_long and not is_whole else []
        for row in rows[: len(rows) - len(hidden)]:
            console.print(Text(row, style=_DIFF_COLOURS.get(row[:1], "")), soft_wrap=True)
        if hidden:
            console.print(f"+ ... {len(hidden)} more lines", style="green")
    for line in fixed.lines:
        where = f"{line.site}: " if line.site else ""
        if line.left:
            console.print(f"{where}left to you ({line.left}): {line.text}", style="yellow")
    for text in fixed.outside:
        console.print(f"{text[0].upper()}{text[1:]}.", style="yellow")


def _print_findings(explanation: Explanation, console: Console) -> None:
    findings = explanation.findings
    if not findings:
        return
    console.print(
        f"\nReading the script: {plural(len(findings), 'thing')} to fix; "
        f"`onsight-lint {explanation.script}` shows how"
    )
    for finding in findings[:_SHOWN_FINDINGS]:
        site = Site(file=str(finding.file), line=finding.line)
        console.print(Padding(f"{site}: {finding.problem}", (0, 0, 0, 2)))


def _tried_facts(result: TrialResult[WhatIf]) -> dict[str, Any]:
    changes = {change.name: change.value for change in result.changes}
    return result_facts(result) | {"changes": changes}


def _setup_words(proof: FixProof, script: str) -> str:
    """Return how much longer the set-up of the fixed script takes, and when that pays off."""
    assert proof.setup_seconds
    before, after = proof.setup_seconds
    extra = after - before
    if extra < _LONG_SETUP_SECONDS or not proof.interval.is_clear_gain:
        return ""
    saved_share = 1 - 1 / proof.interval.low
    return (
        f" Its set-up takes {after:.0f} s instead of {before:.0f} s, which pays off if {script} "
        f"trains for more than {extra / saved_share:.0f} s."
    )


def _rates(proof: FixProof, script: str, name: str) -> str:
    rounds, interval = proof.rounds, proof.interval
    before, after = statistics.median(rounds.baseline), statistics.median(rounds.changed)
    ratio = str(interval) if interval.is_clear_gain else f"no gain was shown ({interval})"
    return f"Run alternately, {script} made {before:,.0f} images/s and {name} {after:,.0f}: {ratio}"
