"""Shows an explained script: tables and sentences for people, plain values for programs."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onsight.explainer.gain import GAIN
from onsight.explainer.mend.advice import Line
from onsight.explainer.phase_table import phase_table, reached
from onsight.explainer.script.explain import Explanation
from onsight.explainer.script.trials import Tried
from onsight.words import plural, ratio_words

_LOSSES = {
    "same": "the same",
    "close": "within 2%",
    "alike": "alike",
    "other": "other!",
    "not comparable": "not comparable",
}


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
        console.print(_table(found))
    if found.best and found.lines:
        console.print(f"\nFor {ratio_words(found.best.ratio)} the speed, change")
        for line in found.lines:
            console.print(Padding(_line(line), (0, 0, 0, 2)))
    _print_findings(found, console)


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
        "best_ratio": best.ratio if best else 1.0,
        "lines": [
            {"file": one.site and one.site.file, "line": one.site and one.site.line}
            | {"text": one.text}
            for one in found.lines
        ],
        "findings": [one.facts() for one in found.findings],
        "ceilings": asdict(found.ceilings) if found.ceilings else None,
        "flops_per_step": trace.flops,
        "bytes_per_step": trace.bytes,
        "trace": trace.model_dump(mode="json"),
        "device": trace.device,
    }


def _epochs(count: int) -> str:
    return f", {plural(count, 'whole epoch')}" if count else ""


def _table(found: Explanation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("what if (each one was run)")
    for name in ("images/s", "ratio", "first losses"):
        table.add_column(name, justify="right")
    table.add_row("as it is", f"{found.rate:,.0f}", "1.00x", "")
    for one in sorted(found.tried, key=lambda one: -one.ratio):
        table.add_row(*_cells(one))
    if found.best and found.best not in found.tried:
        table.add_row(*_cells(found.best))
    return table


def _cells(one: Tried) -> list[str | Text]:
    if one.problem:
        return [one.name, "failed", "", Text(one.problem, style="dim", overflow="fold")]
    style = "green" if one.ratio >= GAIN else ""
    ratio = Text(ratio_words(one.ratio), style=style)
    notes = Text(" ".join([_LOSSES[one.losses], *(f"({note})" for note in one.notes)]))
    return [one.name, f"{one.images_per_second:,.0f}", ratio, notes]


def _line(line: Line) -> Text:
    where = f"{line.site}: " if line.site else ""
    return Text(where, style="bold").append(line.text, style="not bold")


def _print_findings(found: Explanation, console: Console) -> None:
    if not found.findings:
        return
    count = len(found.findings)
    console.print(f"\nReading the script: {plural(count, 'thing')} to fix")
    for one in found.findings:
        console.print(Padding(f"{one.file.name}:{one.line}: {one.problem}", (0, 0, 0, 2)))
        console.print(Padding(one.why, (0, 0, 0, 6)), style="dim")
        for row in one.fixed.splitlines():
            console.print(Padding(Text(row, style="green"), (0, 0, 0, 6)))


def _tried_facts(one: Tried) -> dict[str, Any]:
    return {
        "name": one.name,
        "names": [change.label for change in one.what_ifs],
        "changes": {change.name: change.value for change in one.what_ifs},
        "images_per_second": one.images_per_second or None,
        "ratio": one.ratio or None,
        "losses": one.losses,
        "same_loss": one.losses == "same",
        "problem": one.problem or None,
        "notes": one.notes,
    }
