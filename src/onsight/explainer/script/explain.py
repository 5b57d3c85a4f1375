"""Why a user's training script is slow, and what would make it faster, all of it measured."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from onsight.errors import ConfigError, DataError, ScriptFailed
from onsight.explainer.busy import warn_if_busy
from onsight.explainer.mend.delivery import Delivery, deliver
from onsight.explainer.mend.mended import Line, mends_of, merged
from onsight.explainer.script.bench import ScriptBench
from onsight.explainer.script.causes import find_cause, verdict
from onsight.explainer.script.processes import Processes
from onsight.explainer.script.trace import Trace
from onsight.explainer.search.gain import GAIN
from onsight.explainer.search.race import Found, Race
from onsight.explainer.search.tried import Tried
from onsight.explainer.what_ifs.what_if import Cause, WhatIf
from onsight.hardware.ceilings import Ceilings, measure_ceilings
from onsight.hardware.cores import usable_cores
from onsight.lint.read import Finding, read_script
from onsight.report.console import Reporter

_STEPS = 2_000  # at most; more would add nothing
_WATCHED = 0.08  # of the time, in which the script is watched as it is; it should see an epoch
_PROOF_SECONDS = 8.0  # kept for the mended script
_CEILINGS_SECONDS = 3.0  # kept for the device's ceilings, at the end
_WINDOW_SECONDS, _WINDOW_STEPS = 0.4, 4  # of one measurement, at least
_MATTERS = 0.05  # of the time in evaluation, for windows to be whole epochs


@dataclass(frozen=True)
class Explanation:
    """Everything found out about a script.

    rates: images/s of the script as it is, first over the whole stretch that was watched, then
    beside each change; left_out: changes that there was no time for; delivery: the mended script,
    if one was asked for and something made it faster.
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
    write: Path | None = None,
    reporter: Reporter | None = None,
) -> Explanation:
    """Watch a script's training for a moment, unchanged, and then with changes.

    seconds: for all of it, about; more if one start of the script takes longer. limit_seconds: from
    a start to its first steps; write: where the mended script goes, checked
    before. Raises DataError if there is no such script, ScriptFailed with the script's own output.
    """
    begun, reporter = time.monotonic(), reporter or Reporter()
    if seconds <= 0:
        raise ConfigError("--seconds must be more than 0")
    if not script.is_file():
        raise DataError(f"{script} does not exist")
    findings = read_script(script)
    warn_if_busy(reporter)
    with Processes(script, args, _STEPS, limit_seconds) as processes:
        watched = max(0.3, _WATCHED * seconds)
        reporter.say(f"running {script.name} unchanged, to watch {watched:.0f} s of its training")
        bench = ScriptBench(processes)
        trace, plain = bench.watch(watched)
        if not trace.images:
            raise ScriptFailed(_nothing_seen(trace, limit_seconds))
        wanted = bench.worth(plain) if try_changes else []
        found: Found[WhatIf] = Found([], None, [], [])
        if wanted:
            kept = _CEILINGS_SECONDS + (_PROOF_SECONDS if write else 0)
            left = seconds - kept - (time.monotonic() - begun)
            reporter.say(f"trying {len(wanted)} changes, for about {max(0, left):.0f} s")
            race = Race[WhatIf](bench, plain, left, _window_seconds(trace), reporter)
            found = race.run(wanted)
        best = found.best if found.best and found.best.ratio >= GAIN else None
        delivery = None
        if best and write:
            plain_window = plain, _window_seconds(trace)
            delivery = deliver(script, trace, best.changes, write, bench, *plain_window)
    return Explanation(
        script,
        trace,
        _ceilings(trace),
        [trace.images_per_second, *found.rates],
        found.tried,
        best,
        found.left_out,
        merged(mends_of(best.changes, trace), script) if best else [],
        find_cause(trace, found.tried, usable_cores()),
        findings,
        time.monotonic() - begun,
        delivery,
    )


def _window_seconds(trace: Trace) -> float:
    """Long enough for some steps, and for a whole epoch if more than its training takes time."""
    step = trace.seconds / trace.steps
    workers = trace.loader.workers if trace.loader else 0
    is_whole = trace.epochs and (trace.share("evaluation") >= _MATTERS or workers)
    epoch = trace.seconds / trace.epochs if is_whole else 0.0
    return max(_WINDOW_SECONDS, _WINDOW_STEPS * step, epoch)


def _ceilings(trace: Trace) -> Ceilings | None:
    import torch

    return measure_ceilings(torch.device(trace.device), trace.threads) if trace.flops else None


def _nothing_seen(trace: Trace, limit_seconds: float) -> str:
    if trace.ended == "limit":
        return (
            f"no training step was seen in {limit_seconds:.0f} s: give the script more time with "
            "--limit, or a smaller data set by its arguments after --"
        )
    return (
        "the script ended before enough training steps were seen: more than three updates by a "
        "torch optimizer are needed. Give it more epochs or pictures by its arguments after --"
    )
