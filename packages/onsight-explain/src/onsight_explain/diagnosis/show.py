"""Shows an explained script: tables and sentences for people, plain values for programs."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onsight_explain.delivery.mended import Line
from onsight_explain.delivery.show import print_delivery
from onsight_explain.diagnosis.explain import Explanation
from onsight_explain.json_dataclasses import to_plain
from onsight_explain.phase_table import phase_table, reached
from onsight_explain.process.file_guard import kept_words
from onsight_explain.search.show import best_ratio, how_measured, tried_facts, tried_table
from onsight_explain.search.tried import Tried
from onsight_explain.text import plural
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import WhatIf


def print_explanation(found: Explanation, console: Console) -> None:
    """Phases, the verdict, what each change gave, the lines to change, and the mistakes found."""
    trace = found.trace
    shape = "x".join(str(side) for side in trace.shape)
    console.print(
        f"{found.script.name}: {found.rate:,.0f} images/s on {trace.device} "
        f"(batches of {trace.batch_size}, {shape}; {trace.precision}; "
        f"{plural(trace.threads, 'thread')}; {trace.steps:,} steps in {trace.seconds:.1f} s"
        f"{_epochs(trace.epochs)}; "
        f"{trace.startup_seconds:.1f} s from its start to its first step)\n"
    )
    console.print(phase_table(trace.phases, trace.steps, trace.device_phases))
    if found.ceilings and trace.flops:
        step = trace.seconds / trace.steps
        arithmetic = reached(trace.flops, trace.bytes, step, trace.precision, found.ceilings)
        console.print(f"\n{arithmetic}", style="dim")
    if trace.placement:
        console.print(f"placement: {trace.placement}", style="dim")
    for problem in trace.misplaced:
        console.print(f"placement: {problem}", style="yellow")
    console.print(Padding(found.verdict, (1, 0)), style="bold")
    if found.tried:
        console.print(tried_table(found.tried, found.best, found.rate, with_losses=True))
        said = how_measured(found.tried, found.left_out, found.rates)
        console.print(f"\n{said}; {found.seconds:.0f} s in all", style="dim")
    for remark in trace.remarks:
        console.print(f"{remark[0].upper()}{remark[1:]}.", style="dim")
    if found.kept:
        console.print(kept_words(found.script.name, found.kept), style="dim")
    is_shown = found.best and found.best.interval and found.best.interval.is_shown
    if found.best and is_shown and not found.delivery:  # whose difference says the same
        console.print(f"\nFor {found.best.interval}, change")
        for line in found.lines:
            console.print(Padding(_line(line), (0, 0, 0, 2)))
    _print_findings(found, console)
    if found.delivery:
        print_delivery(found.delivery, console)


def facts(found: Explanation) -> dict[str, Any]:
    """The explanation as plain values: times in seconds, ratios relative to the script as it is."""
    trace, best = found.trace, found.best
    return {
        "verdict": found.verdict,
        "cause": found.cause.name,
        "images_per_second": found.rate,
        "seconds": trace.seconds,
        "steps": trace.steps,
        "phases": trace.phases,
        "device_phases": trace.device_phases,
        "what_ifs": [_tried_facts(one) for one in found.tried],
        "best": _tried_facts(best) if best else None,
        "best_ratio": best_ratio(best),
        "not_tried": [one.label for one in found.left_out],
        "rates": found.rates,
        "explained_in_seconds": found.seconds,
        "lines": [
            {"file": one.site and one.site.file, "line": one.site and one.site.line}
            | {"text": one.text}
            for one in found.lines
        ],
        "files_kept": [str(path) for path in found.kept],
        "mended": found.delivery.facts() if found.delivery else None,
        "findings": [one.facts() for one in found.findings],
        "ceilings": asdict(found.ceilings) if found.ceilings else None,
        "flops_per_step": trace.flops,
        "bytes_per_step": trace.bytes,
        "trace": to_plain(trace),
        "device": trace.device,
    }


def _epochs(count: int) -> str:
    return f", {plural(count, 'whole epoch')}" if count else ""


def _line(line: Line) -> Text:
    where = f"{line.site}: " if line.site else ""
    return Text(where, style="bold").append(line.text, style="not bold")


def _print_findings(found: Explanation, console: Console) -> None:
    if not found.findings:
        return
    count = len(found.findings)
    console.print(f"\nReading the script: {plural(count, 'thing')} to fix")
    for one in found.findings:
        console.print(
            Padding(f"{Site(file=str(one.file), line=one.line)}: {one.problem}", (0, 0, 0, 2))
        )
        console.print(Padding(one.why, (0, 0, 0, 6)), style="dim")
        for row in one.fixed.splitlines():
            console.print(Padding(Text(row, style="green"), (0, 0, 0, 6)))


def _tried_facts(one: Tried[WhatIf]) -> dict[str, Any]:
    return tried_facts(one) | {"changes": {change.name: change.value for change in one.changes}}
