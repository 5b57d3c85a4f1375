"""Run a user's training script on the simulated GPU to find waits and faults of a real GPU."""

import os
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onsight_explain.console import StderrMessages
from onsight_explain.devices import can_register_python_device
from onsight_explain.errors import ExplainError, ScriptFailed
from onsight_explain.json_dataclasses import from_json, to_json, to_plain
from onsight_explain.process.failure import describe_failure, read_last_output
from onsight_explain.process.file_guard import describe_unchanged, unchanged_files
from onsight_explain.process.supervised import GRACE_SECONDS, SupervisedChild
from onsight_explain.script.source import check_is_file
from onsight_explain.script.trace import SimulationRequest, SimulationTrace, Waits
from onsight_explain.simulated.machine import DEVICE_TYPE
from onsight_explain.text import plural
from onsight_explain.tracing.sites import Site

_CHILD = "onsight_explain.on_simulated_gpu.child"
_STEPS = 10

# A part of the simulated device's name for a wait, what it means, and what to write instead.
_REMEDIES = (
    (
        "_local_scalar_dense",
        "a value is read: .item(), float(), if, print",
        "keep it on the GPU and read it every 100 steps (GradScaler: fused=True in the optimizer)",
    ),
    (
        "not page-locked",
        "a tensor is copied from ordinary memory",
        "DataLoader(..., pin_memory=True) and .to(device, non_blocking=True)",
    ),
    ("to the device", "Python waits for a copy to the GPU", ".to(device, non_blocking=True)"),
    (
        "to the host",
        "a tensor is copied to the host: .cpu(), .numpy(), .tolist()",
        "collect on the GPU and copy once an epoch",
    ),
    ("by a mask", "a mask is used as an index", "torch.where, or multiply by the mask"),
    ("where()", "torch.where is given a number", "make it a tensor on the device once"),
    ("ynchronize", "Python waits for all of the GPU's work", "leave it out, except for timings"),
    ("", "the size of the result depends on values", "work with a result of fixed size"),
)
_EARLY_ENDS = {
    "limit": "the time limit was reached: raise it with --limit",
    "script": "the script ended: more than two updates by a torch optimizer are needed",
}


@dataclass(frozen=True)
class Remedy:
    """The waits at one line: their cause, their number and what to write instead."""

    site: Site | None
    what: str
    instead: str
    per_step: float


@dataclass(frozen=True)
class SimulationResult:
    """Everything observed of a script on the simulated GPU."""

    script: Path
    trace: SimulationTrace
    remedies: list[Remedy]
    unchanged: list[Path]  # files that the script tried to change

    @property
    def is_sound(self) -> bool:
        """Whether the observed steps used the GPU without any fault."""
        trace = self.trace
        return not (trace.failure or trace.faults) and min(trace.launches_before, trace.steps) > 0


def run_on_simulated_gpu(script: Path, args: list[str], limit_seconds: float) -> SimulationResult:
    """Run a script unchanged for some steps, with a simulated GPU as its CUDA device.

    The time limit is for the whole run. Raises ExplainError if there is no such script or torch is
    too old, ScriptFailed if the process does not report.
    """
    check_is_file(script)
    if not can_register_python_device():
        raise ExplainError(
            f"--simulate-gpu needs a newer torch than {torch.__version__}, which cannot register a "
            "device that is written in Python: pip install --upgrade torch"
        )
    StderrMessages().say(f"running {script.name} on a GPU simulated on the CPU")
    with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
        began = time.time()
        request_file, output, out = (Path(folder) / name for name in ("request", "output", "trace"))
        request = SimulationRequest(
            script=script.resolve(), args=args, steps=_STEPS, limit_seconds=limit_seconds, out=out
        )
        request_file.write_text(to_json(request))
        with SupervisedChild(
            _CHILD, [str(request_file)], output=output, environment=os.environ, has_terminal=True
        ) as child:
            code = child.wait(limit_seconds + GRACE_SECONDS)
        if not out.exists():
            raise ScriptFailed(describe_failure(read_last_output(output), code, script.name))
        trace = from_json(SimulationTrace, out.read_bytes())
        unchanged = unchanged_files(Path(folder), began)
    return SimulationResult(script, trace, _find_remedies(trace.waits), unchanged)


def print_simulation(result: SimulationResult, console: Console) -> None:
    """Print errors first, then launches, then waits by line."""
    trace = result.trace
    console.print(f"\n{_verdict(result)}", style="bold")
    if trace.failure:
        where = f"{trace.failure.site}: " if trace.failure.site else ""
        message = _first_line(trace.failure.message)
        console.print(Padding(f"{where}{trace.failure.kind}: {message}", 1))
    for fault in trace.faults:
        console.print(Padding(fault, (0, 0, 0, 2)), style="yellow")
    if result.unchanged:
        console.print(describe_unchanged(result.script.name, result.unchanged), style="dim")
    if not trace.steps:
        return
    console.print(
        f"\n{plural(trace.steps, 'step')} observed: {trace.launches_per_step:,.0f} launches and "
        f"{sum(waits.per_step for waits in trace.waits):,.1f} waits per step"
    )
    for remedy in result.remedies:
        _print_remedy(remedy, console)


def facts(result: SimulationResult) -> dict[str, Any]:
    """Return plain values."""
    return {
        "verdict": _verdict(result),
        "is_sound": result.is_sound,
        **to_plain(result.trace),
        "unchanged_files": [str(path) for path in result.unchanged],
        "remedies": [
            {
                "file": remedy.site and remedy.site.file,
                "line": remedy.site and remedy.site.line,
                "per_step": remedy.per_step,
                "what": remedy.what,
                "instead": remedy.instead,
            }
            for remedy in result.remedies
        ],
    }


def _find_remedies(all_waits: list[Waits]) -> list[Remedy]:
    """Return a remedy for each line and kind of wait, the most frequent first."""
    per_step: defaultdict[tuple[Site | None, str, str], float] = defaultdict(float)
    for waits in all_waits:
        what, instead = next(texts for part, *texts in _REMEDIES if part in waits.cause)
        per_step[waits.site, what, instead] += waits.per_step
    remedies = [Remedy(*key, count) for key, count in per_step.items()]
    return sorted(remedies, key=lambda remedy: -remedy.per_step)


def _verdict(result: SimulationResult) -> str:
    trace, name = result.trace, result.script.name
    if trace.failure and trace.failure.kind == "NotImplementedError":
        return f"{name} uses something that the simulated GPU does not support: no conclusion"
    if trace.failure:
        return f"{name} fails on a GPU"
    if trace.faults:
        return f"{name} may give wrong results on a GPU"
    if not trace.launches_before:
        return f"{name} never uses the GPU: nothing was sent to cuda"
    if not trace.steps:
        reason = _EARLY_ENDS[trace.ended]
        return f"{name} uses the GPU, but too few steps were observed: {reason}"
    if trace.waits:
        return f"{name} runs on a GPU; in each step, Python waits for it"
    return f"{name} runs on a GPU, and Python never waits for it in a step"


def _print_remedy(remedy: Remedy, console: Console) -> None:
    where = str(remedy.site) if remedy.site else "elsewhere"
    line = Text(f"{where}: ", style="bold").append(
        f"{remedy.per_step:,.1f} per step: {remedy.what}", style="not bold"
    )
    console.print(Padding(line, (0, 0, 0, 2)))
    console.print(Padding(Text(remedy.instead, style="green"), (0, 0, 0, 6)))


def _first_line(message: str) -> str:
    return message.splitlines()[0].replace(f"{DEVICE_TYPE}:", "cuda:") if message else ""
