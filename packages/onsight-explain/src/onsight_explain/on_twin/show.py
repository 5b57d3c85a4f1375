"""Shows what a script would do on a GPU: sentences for people, plain values for programs."""

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onsight_explain.json_dataclasses import to_plain
from onsight_explain.on_twin.explain import OnTwin, Remedy
from onsight_explain.process.file_guard import kept_words
from onsight_explain.text import plural

_SAID_OF_ENDING = {
    "limit": "the time was over: --limit gives it more",
    "script": "the script ended: more than two updates by a torch optimizer are needed",
}


def print_on_twin(found: OnTwin, console: Console) -> None:
    """Errors first, then waits by line, then launches."""
    trace = found.trace
    console.print(f"\n{_verdict(found)}", style="bold")
    if trace.failure:
        where = f"{trace.failure.site}: " if trace.failure.site else ""
        console.print(Padding(f"{where}{trace.failure.kind}: {_first(trace.failure.message)}", 1))
    for fault in trace.faults:
        console.print(Padding(fault, (0, 0, 0, 2)), style="yellow")
    if found.kept:
        console.print(kept_words(found.script.name, found.kept), style="dim")
    if not trace.steps:
        return
    console.print(
        f"\n{plural(trace.steps, 'step')} watched: {trace.launches_per_step:,.0f} launches and "
        f"{sum(one.per_step for one in trace.waits):,.1f} waits a step"
    )
    for one in found.remedies:
        _print_remedy(one, console)


def facts(found: OnTwin) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "verdict": _verdict(found),
        "is_sound": found.is_sound,
        **to_plain(found.trace),
        "files_kept": [str(path) for path in found.kept],
        "remedies": [
            {
                "file": one.site and one.site.file,
                "line": one.site and one.site.line,
                "per_step": one.per_step,
                "what": one.what,
                "instead": one.instead,
            }
            for one in found.remedies
        ],
    }


def _verdict(found: OnTwin) -> str:
    trace, name = found.trace, found.script.name
    if trace.failure and trace.failure.kind == "NotImplementedError":
        return f"{name} does something that the twin does not know, so it says nothing of a GPU"
    if trace.failure:
        return f"{name} fails on a GPU"
    if trace.faults:
        return f"{name} may give wrong results on a GPU"
    if not trace.launches_before:
        return f"{name} never uses the GPU: nothing was sent to cuda"
    if not trace.steps:
        return f"{name} uses the GPU, but too few steps were seen: {_SAID_OF_ENDING[trace.ended]}"
    if trace.waits:
        return f"{name} runs on a GPU; in each step, Python waits for it"
    return f"{name} runs on a GPU, and Python never waits for it in a step"


def _print_remedy(one: Remedy, console: Console) -> None:
    where = str(one.site) if one.site else "elsewhere"
    line = Text(f"{where}: ", style="bold").append(
        f"{one.per_step:,.1f} a step: {one.what}", style="not bold"
    )
    console.print(Padding(line, (0, 0, 0, 2)))
    console.print(Padding(Text(one.instead, style="green"), (0, 0, 0, 6)))


def _first(message: str) -> str:
    return message.splitlines()[0].replace("twin:", "cuda:") if message else ""
