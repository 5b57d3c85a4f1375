"""What a user's training script would do on a GPU, found out on the twin."""

import os
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from onsight_explain.accelerator import can_register_python_device
from onsight_explain.console import StderrMessages
from onsight_explain.errors import ExplainError, ScriptFailed
from onsight_explain.json_dataclasses import from_json, to_json
from onsight_explain.on_twin.trace import Request, TwinTrace, Waits
from onsight_explain.process.failure import failure_words
from onsight_explain.process.file_guard import kept_files
from onsight_explain.process.launch import last_words, run_child
from onsight_explain.script.reading import check_is_file
from onsight_explain.tracing.sites import Site

_CHILD = "onsight_explain.on_twin.child"
_STEPS = 10

# What the twin calls a wait: what it is, and what to write instead.
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
    ("to the device", "a copy to the GPU is waited for", ".to(device, non_blocking=True)"),
    (
        "to the host",
        "a tensor is copied to the host: .cpu(), .numpy(), .tolist()",
        "collect on the GPU and copy once an epoch",
    ),
    ("by a mask", "a mask is used as an index", "torch.where, or multiply by the mask"),
    ("where()", "torch.where is given a number", "make it a tensor on the device once"),
    ("ynchronize", "Python waits for all of the GPU's work", "leave it out, but for timings"),
    ("", "the size of the result depends on values", "work with a result of fixed size"),
)


@dataclass(frozen=True)
class Remedy:
    """Waits at one line: what they are, what to write instead, and how many."""

    site: Site | None
    what: str
    instead: str
    per_step: float


@dataclass(frozen=True)
class OnTwin:
    """Everything found out about a script on the twin; kept: files that it would have changed."""

    script: Path
    trace: TwinTrace
    remedies: list[Remedy]
    kept: list[Path]

    @property
    def is_sound(self) -> bool:
        """Whether steps were seen to use the GPU, and nothing to go wrong there."""
        trace = self.trace
        return not (trace.failure or trace.faults) and min(trace.launches_before, trace.steps) > 0


def explain_on_twin(script: Path, args: list[str], limit_seconds: float = 120.0) -> OnTwin:
    """Run a script unchanged for some steps, with a simulated GPU as its CUDA device.

    limit_seconds: for the run, from its start. Raises ExplainError if there is no such script or
    if torch is too old, ScriptFailed if the process gives no answer.
    """
    check_is_file(script)
    if not can_register_python_device():
        raise ExplainError(
            f"--twin needs a newer torch than {torch.__version__}, which cannot register a device "
            "that is written in Python: pip install --upgrade torch"
        )
    StderrMessages().say(f"running {script.name} on the twin, a GPU simulated on the CPU")
    with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
        begun = time.time()
        asked, said, out = (Path(folder) / name for name in ("request", "said", "trace"))
        request = Request(
            script=script.resolve(), args=args, steps=_STEPS, limit_seconds=limit_seconds, out=out
        )
        asked.write_text(to_json(request))
        code = run_child(_CHILD, asked, said, limit_seconds, dict(os.environ))
        if not out.exists():
            raise ScriptFailed(failure_words(last_words(said), code, script.name))
        trace = from_json(TwinTrace, out.read_bytes())
        kept = kept_files(Path(folder), begun)
    return OnTwin(script, trace, _remedies(trace.waits), kept)


def _remedies(waits: list[Waits]) -> list[Remedy]:
    """One for each line and kind of wait, the most frequent first."""
    per_step: defaultdict[tuple[Site | None, str, str], float] = defaultdict(float)
    for one in waits:
        what, instead = next(words for part, *words in _REMEDIES if part in one.cause)
        per_step[one.site, what, instead] += one.per_step
    found = [Remedy(*key, count) for key, count in per_step.items()]
    return sorted(found, key=lambda one: -one.per_step)
