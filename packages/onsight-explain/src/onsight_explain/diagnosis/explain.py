"""Measure why a user's training script is slow, and which changes make it faster."""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from onsight_explain.ceilings import Ceilings, measure_ceilings
from onsight_explain.console import StderrMessages
from onsight_explain.delivery.delivery import Delivery, deliver
from onsight_explain.delivery.fixed_script import FixedScript, fix_script, fixes_for, list_cautions
from onsight_explain.diagnosis.causes import find_cause, verdict
from onsight_explain.errors import ExplainError, ScriptFailed
from onsight_explain.json_dataclasses import from_json
from onsight_explain.paired_timing import MIN_ROUNDS, warn_if_busy
from onsight_explain.process.bench import ScriptBench, ScriptTrial
from onsight_explain.process.failure import describe_no_training
from onsight_explain.process.processes import Processes
from onsight_explain.script.source import (
    check_is_file,
    check_still_exists,
    find_mistakes,
    parse_script,
)
from onsight_explain.script.thread_settings import read_settings, script_spinning
from onsight_explain.script.trace import Trace
from onsight_explain.search import MIN_GAIN, Search, SearchResult, TrialResult
from onsight_explain.search_table import describe_noise, noise_ratio
from onsight_explain.threads import is_busy, usable_cores
from onsight_explain.tracing.timeline import Timeline, write_timeline
from onsight_explain.tracing.window import Epoch
from onsight_explain.what_ifs.what_if import Cause, WhatIf
from onsight_lint.rule import Finding

_MAX_STEPS = 2_000  # enough for any window
_WATCH_SHARE = 0.08  # fraction of the time for the unchanged script, to include an epoch
_PROOF_SECONDS = 8.0  # reserved at least for the rounds of the fixed script, not for its start
_CEILINGS_SECONDS = 7.0  # reserved for the device's ceilings, at the end
_WINDOW_SECONDS, _WINDOW_STEPS = 0.4, 4  # minimum of a measurement
_EVALUATION_SHARE = 0.05  # fraction of the time; above it, windows are whole epochs
_MAX_EPOCH_SHARE = 0.12  # fraction of the time; longer epochs are not measured whole


@dataclass(frozen=True)
class Explanation:
    """Everything measured and read about a script."""

    script: Path
    trace: Trace
    ceilings: Ceilings | None
    # images/s of the unchanged script: first over the whole interval, then beside each change.
    rates: list[float]
    search: SearchResult[WhatIf]
    best: TrialResult[WhatIf] | None  # if it is more than a little faster
    fixed: FixedScript | None  # with the best changes, if their gain was shown
    cautions: list[str]  # what else to do about these changes
    cause: Cause
    findings: list[Finding]
    seconds: float
    delivery: Delivery | None = None  # if it was requested and some gain was shown
    unchanged: list[Path] = field(default_factory=list)  # files that the script tried to change

    @property
    def rate(self) -> float:
        """images/s of the unchanged script: the median of its windows."""
        return statistics.median(self.rates)

    @property
    def verdict(self) -> str:
        """The cause, and the least that its removal gained."""
        return verdict(self.trace, self.cause, self.best, len(self.search.results))


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
    """Measure a script's training briefly, unchanged and then with changes.

    It takes about `seconds`, besides the set-up of the script and of its fixed version, which lasts
    from a start to the first step and at most `limit_seconds`. The fixed script is written to
    `write`, which has been checked, and the timeline of the unchanged script to `trace_file`.

    Raises ExplainError if there is no such script, ScriptFailed with the script's output.
    """
    began, messages = time.monotonic(), StderrMessages()
    check_is_file(script)
    findings = find_mistakes(script)
    if not parse_script(script).body:
        raise ExplainError(f"{script} contains no code")
    was_busy = warn_if_busy(messages)
    if spinning := script_spinning(script):
        messages.say(f"so the script's threads wait for each other only briefly ({spinning})")
    with Processes(script, args, _MAX_STEPS, limit_seconds) as processes:
        watch_seconds = max(0.3, _WATCH_SHARE * seconds)
        messages.say(
            f"running {script.name} unchanged, to measure {watch_seconds:.0f} s of its training"
        )
        bench = ScriptBench(processes)
        bench.is_busy = was_busy
        trace, plain = _watch(bench, watch_seconds, script.name, trace_file)
        if not trace.images:
            raise ScriptFailed(describe_no_training(trace.ended, limit_seconds, trace.last_output))
        check_still_exists(script)
        began += trace.startup_seconds  # the time to search is counted without it
        trace.script = str(script.resolve())
        trace.thread_settings = read_settings(script, os.environ)
        window_seconds = max(_WINDOW_SECONDS, _WINDOW_STEPS * trace.seconds / max(1, trace.steps))
        candidates = bench.candidates(plain) if try_changes else []
        found: SearchResult[WhatIf] = SearchResult([], None, [], [])
        if candidates:
            reserved = max(_PROOF_SECONDS, MIN_ROUNDS * 2 * window_seconds) if write else 0.0
            remaining = seconds - _CEILINGS_SECONDS - (time.monotonic() - began)
            messages.say(f"trying {len(candidates)} changes, for about {max(0, remaining):.0f} s")
            bench.epoch, bench.until = _epoch(trace, remaining), began + seconds
            race = Search[WhatIf](bench, plain, remaining, window_seconds, messages, reserved)
            found = race.run(candidates)
            was_busy = was_busy or is_busy()  # all our processes are suspended
        best = found.best if found.best and found.best.ratio >= MIN_GAIN else None
        shown = best if best and best.is_clear_gain else None
        delivery = None
        if shown and write:
            delivery = deliver(
                script, trace, shown.changes, write, bench, plain, window_seconds, found.min_gain
            )
        elif write:
            messages.warn(f"{write} was not written: no change was shown to help")
        unchanged = processes.unchanged_files()
    noise = describe_noise(found, was_busy)
    return Explanation(
        script=script,
        trace=trace,
        ceilings=(
            measure_ceilings(torch.device(trace.device), trace.threads) if trace.flops else None
        ),
        rates=[trace.images_per_second, *found.baseline_rates],
        search=found,
        best=best,
        fixed=fix_script(script, fixes_for(shown.changes, trace)) if shown else None,
        cautions=list_cautions(shown.changes, trace) if shown else [],
        cause=find_cause(
            trace, found.results, best, usable_cores(), noise, noise_ratio(found, was_busy)
        ),
        findings=findings,
        seconds=time.monotonic() - began + trace.startup_seconds,
        delivery=delivery,
        unchanged=unchanged,
    )


def _epoch(trace: Trace, seconds: float) -> Epoch | None:
    """Return an epoch to measure as a whole, of all trials that take `seconds` together.

    None if neither evaluation nor the start of workers is a part of it, or if it is too long.
    """
    loader = trace.loader
    workers = loader.workers if loader else 0
    if trace.epochs:
        is_evaluated = trace.share("evaluation") >= _EVALUATION_SHARE
        if not workers and not is_evaluated:
            return None
        epoch = Epoch(trace.images // trace.epochs, trace.seconds / trace.epochs, is_evaluated)
    elif loader and workers and loader.items:
        epoch = Epoch(loader.items, loader.items / trace.images * trace.seconds)
    else:
        return None
    return epoch if epoch.seconds <= _MAX_EPOCH_SHARE * seconds else None


def _watch(
    bench: ScriptBench, seconds: float, name: str, file: Path | None
) -> tuple[Trace, ScriptTrial]:
    """Watch the script of this name, and write its timeline to a file if one is given."""
    if file is None:
        return bench.watch(seconds)
    with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
        path = Path(folder) / "timeline.json"
        watched = bench.watch(seconds, path)
        if path.exists():
            timeline = from_json(Timeline, path.read_bytes())
            StderrMessages().say(write_timeline(file, name, timeline))
    return watched
