"""Why a user's training script is slow, and what would make it faster, all of it measured."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from onsight_explain.busy import warn_if_busy
from onsight_explain.ceilings import Ceilings, measure_ceilings
from onsight_explain.console import Messages, StderrMessages
from onsight_explain.cores import usable_cores
from onsight_explain.delivery.delivery import Delivery, deliver
from onsight_explain.delivery.mended import Line, mends_of, merged
from onsight_explain.diagnosis.causes import find_cause, verdict
from onsight_explain.errors import ExplainError, ScriptFailed
from onsight_explain.interleave import FEWEST_ROUNDS
from onsight_explain.json_dataclasses import from_json
from onsight_explain.process.bench import ScriptBench, ScriptTrial
from onsight_explain.process.failure import nothing_seen
from onsight_explain.process.processes import Processes
from onsight_explain.script.reading import check_is_file, find_mistakes, parse_script
from onsight_explain.script.thread_settings import settings_of
from onsight_explain.script.trace import Trace
from onsight_explain.search.gain import GAIN
from onsight_explain.search.race import Found, Race
from onsight_explain.search.tried import Tried
from onsight_explain.tracing.timeline import Timeline, write_timeline
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.what_if import Cause, WhatIf
from onsight_lint.rule import Finding

_STEPS = 2_000  # at most; more would add nothing
_WATCHED = 0.08  # of the time, in which the script is watched as it is; it should see an epoch
_PROOF_SECONDS = 8.0  # kept for the mended script at least, beside the time that its start takes
_CEILINGS_SECONDS = 7.0  # kept for the device's ceilings, at the end
_WINDOW_SECONDS, _WINDOW_STEPS = 0.4, 4  # of one measurement, at least
_MATTERS = 0.05  # of the time in evaluation, for windows to be whole epochs
_LONGEST_EPOCH = 0.12  # of the time, to be measured as a whole


@dataclass(frozen=True)
class Explanation:
    """Everything found out about a script.

    rates: images/s of the script as it is, first over the whole stretch that was watched, then
    beside each change; left_out: changes that there was no time for; delivery: the mended script,
    if one was asked for and something made it faster; kept: files that the script would have
    changed or deleted.
    """

    script: Path
    trace: Trace
    ceilings: Ceilings | None
    rates: list[float]
    tried: list[Tried[WhatIf]]
    best: Tried[WhatIf] | None
    left_out: list[WhatIf]
    lines: list[Line]
    cause: Cause
    findings: list[Finding]
    seconds: float
    delivery: Delivery | None = None
    kept: list[Path] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """images/s of the script as it is: the median of its windows."""
        return statistics.median(self.rates)

    @property
    def verdict(self) -> str:
        """The cause, and what removing it gained at least."""
        return verdict(self.trace, self.cause, self.best, len(self.tried))


def explain_script(
    script: Path,
    args: list[str],
    seconds: float = 60.0,
    try_changes: bool = True,
    limit_seconds: float = 120.0,
    *,
    write: Path | None = None,
    trace_file: Path | None = None,
) -> Explanation:
    """Watch a script's training for a moment, unchanged, and then with changes.

    seconds: for all of it, about; more if one start of the script takes longer. limit_seconds: from
    a start to its first steps; write: where the mended script goes, checked before; trace_file: to
    write the timeline of the unchanged script into. Raises ExplainError if there is no such script,
    ScriptFailed with the script's own output.
    """
    begun, messages = time.monotonic(), StderrMessages()
    check_is_file(script)
    findings = find_mistakes(script)
    if not parse_script(script).body:
        raise ExplainError(f"{script} holds no code")
    warn_if_busy(messages)
    with Processes(script, args, _STEPS, limit_seconds) as processes:
        watched = max(0.3, _WATCHED * seconds)
        messages.say(f"running {script.name} unchanged, to watch {watched:.0f} s of its training")
        bench = ScriptBench(processes)
        watch = partial(bench.watch, watched)
        trace, plain = _with_timeline(watch, trace_file, script.name, messages)
        if not trace.images:
            raise ScriptFailed(nothing_seen(trace.ended, limit_seconds, trace.last_words))
        trace.script = str(script.resolve())
        trace.thread_settings = settings_of(script, os.environ)
        wanted = bench.worth(plain) if try_changes else []
        found: Found[WhatIf] = Found([], None, [], [])
        if wanted:
            kept = _proof_seconds(trace) if write else 0.0
            left = seconds - _CEILINGS_SECONDS - (time.monotonic() - begun)
            messages.say(f"trying {len(wanted)} changes, for about {max(0, left):.0f} s")
            bench.epoch, bench.until = _epoch(trace, left), begun + seconds
            race = Race[WhatIf](bench, plain, left, _window_seconds(trace), messages, kept)
            found = race.run(wanted)
        best = found.best if found.best and found.best.ratio >= GAIN else None
        delivery = None
        if best and write:
            plain_window = plain, _window_seconds(trace)
            delivery = deliver(script, trace, best.changes, write, bench, *plain_window)
        elif write:
            messages.warn(f"{write} was not written: no change was shown to help")
        kept_files = processes.kept_files()
    return Explanation(
        script,
        trace,
        _ceilings(trace),
        [trace.images_per_second, *found.rates],
        found.tried,
        best,
        found.left_out,
        merged(mends_of(best.changes, trace), script) if best else [],
        find_cause(trace, found.tried, best, usable_cores()),
        findings,
        time.monotonic() - begun,
        delivery,
        kept_files,
    )


def _window_seconds(trace: Trace) -> float:
    """Long enough for some steps."""
    return max(_WINDOW_SECONDS, _WINDOW_STEPS * trace.seconds / trace.steps)


def _proof_seconds(trace: Trace) -> float:
    """To start the mended script from its beginning and measure both in the fewest rounds."""
    rounds = FEWEST_ROUNDS * 2 * _window_seconds(trace)
    return trace.startup_seconds + max(_PROOF_SECONDS, rounds)


def _epoch(trace: Trace, seconds: float) -> Epoch | None:
    """An epoch, if evaluation or the start of workers is a part of it and it is short enough.

    seconds: for all that is tried.
    """
    loader = trace.loader
    workers = loader.workers if loader else 0
    if trace.epochs:
        is_evaluated = trace.share("evaluation") >= _MATTERS
        if not workers and not is_evaluated:
            return None
        found = Epoch(trace.images // trace.epochs, trace.seconds / trace.epochs, is_evaluated)
    elif loader and workers and loader.items:
        found = Epoch(loader.items, loader.items / trace.images * trace.seconds)
    else:
        return None
    return found if found.seconds <= _LONGEST_EPOCH * seconds else None


def _with_timeline(
    watch: Callable[..., tuple[Trace, ScriptTrial]],
    file: Path | None,
    name: str,
    messages: Messages,
) -> tuple[Trace, ScriptTrial]:
    """Watch the script of this name, and write its timeline into a file, if one is wanted."""
    if file is None:
        return watch()
    with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
        path = Path(folder) / "timeline.json"
        seen = watch(timeline=path)
        if path.exists():
            timeline = from_json(Timeline, path.read_bytes())
            messages.say(write_timeline(file, name, timeline))
    return seen


def _ceilings(trace: Trace) -> Ceilings | None:
    import torch

    return measure_ceilings(torch.device(trace.device), trace.threads) if trace.flops else None
