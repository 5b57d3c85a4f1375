"""Why a user's training script is slow, and what would make it faster, all of it measured."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from onsight.errors import ConfigError, DataError, ScriptFailed
from onsight.explainer.busy import warn_if_busy
from onsight.explainer.mend.advice import Line, merged
from onsight.explainer.script.causes import find_cause, verdict
from onsight.explainer.script.failure import nothing_seen
from onsight.explainer.script.notebook import SUFFIX, read_notebook, whole_tree
from onsight.explainer.script.processes import Processes
from onsight.explainer.script.reading import findings_in
from onsight.explainer.script.slowest import cause_of_ranks
from onsight.explainer.script.trace import Trace
from onsight.explainer.script.trials import Trials, Tried
from onsight.explainer.tracing.timeline import Timeline, write_timelines
from onsight.explainer.what_ifs.table import in_order, what_ifs_for
from onsight.explainer.what_ifs.what_if import Cause, Seen
from onsight.hardware.ceilings import Ceilings, measure_ceilings
from onsight.hardware.cores import usable_cores
from onsight.lint.read import Finding
from onsight.report.console import Reporter
from onsight.words import percent

_STEPS = 2_000  # at most; more would add nothing
_SPREAD = 0.2  # of the script's own speed; if its runs differ more, the user is warned
_NOT_TOGETHER = (
    "{name} was started {ranks} times, as torchrun does, but its processes do not train together, "
    "as they would after torch.distributed.init_process_group(): leave --ranks out"
)
_FIRST = 2.0  # times the seconds, for the first run, which should see a whole epoch


@dataclass(frozen=True)
class Explanation:
    """Everything found out about a script. rate: images/s as it is, over all its runs."""

    script: Path
    trace: Trace
    ceilings: Ceilings | None
    rate: float
    tried: list[Tried]
    best: Tried | None
    lines: list[Line]
    cause: Cause
    verdict: str
    findings: list[Finding]


def explain_script(
    script: Path,
    args: list[str],
    seconds: float = 4.0,
    try_changes: bool = True,
    limit_seconds: float = 120.0,
    reporter: Reporter | None = None,
    *,
    ranks: int = 1,
    trace_file: Path | None = None,
) -> Explanation:
    """Run a script for a while, unchanged, and then with one thing changed at a time.

    seconds: to measure in each run; limit_seconds: for each run, from its start; ranks: processes
    that train together; trace_file: to write the timeline of the unchanged script into. Raises
    DataError if there is no such script, ScriptFailed with the script's own output.
    """
    reporter = reporter or Reporter()
    if seconds <= 0:
        raise ConfigError("--seconds must be more than 0")
    check_is_file(script)
    findings = findings_in(script)
    tree = whole_tree(script)
    if not tree.body:
        raise DataError(f"{script} holds no code")
    if script.suffix == SUFFIX:
        for words in read_notebook(script).left_out:
            reporter.say(f"left out: {words}")
    warn_if_busy(reporter)
    reporter.say(
        f"running {script.name} unchanged, to watch {seconds * _FIRST:.0f} s of its training"
    )
    with Processes(script, args, _STEPS, limit_seconds, ranks) as processes:
        processes.prepare(is_late=not torch.accelerator.is_available())
        watch = partial(processes.run, seconds=seconds * _FIRST, is_full=True)
        trace = _with_timeline(watch, trace_file, script, reporter) if trace_file else watch()
        if not trace.images:
            raise ScriptFailed(nothing_seen(trace.ended, limit_seconds, trace.last_words))
        if trace.world < ranks:
            raise ScriptFailed(_NOT_TOGETHER.format(name=script.name, ranks=ranks))
        seen = Seen(trace, tree, usable_cores())
        wanted = what_ifs_for(seen) if try_changes else []
        tried: list[Tried] = []
        best, rate = None, trace.images_per_second
        if wanted:
            each = trace.startup_seconds + seconds
            reporter.say(f"trying {len(wanted)} changes, about {each:.0f} s each")
            trials = Trials(partial(processes.run, seconds=seconds), trace, reporter)
            tried, best = trials.run(wanted)
            rate = trials.rate
            if trials.spread > _SPREAD:
                reporter.warn(
                    f"the unchanged script's runs differed by {percent(trials.spread)}: ratios "
                    "closer to 1 than that mean little; measure again when the machine is idle"
                )
    cause = cause_of_ranks(trace) or find_cause(trace, tried, seen.cores)
    return Explanation(
        script,
        trace,
        _ceilings(trace),
        rate,
        tried,
        best,
        _lines(trace, best) if best else [],
        cause,
        verdict(trace, cause, best, rate, len(tried)),
        findings,
    )


def _with_timeline(
    watch: Callable[..., Trace], file: Path, script: Path, reporter: Reporter
) -> Trace:
    """Watch the script, and write its timeline into a file."""
    with tempfile.TemporaryDirectory(prefix="onsight-explain-") as folder:
        trace = watch(timelines=Path(folder))
        files = sorted(Path(folder).iterdir(), key=lambda path: int(path.stem))
        timelines = [Timeline.model_validate_json(path.read_bytes()) for path in files]
    if timelines:
        said = write_timelines(file, script.name, timelines)
        reporter.say(f"{file}: {said}; open it at ui.perfetto.dev or in chrome://tracing")
    return trace


def _lines(trace: Trace, best: Tried) -> list[Line]:
    return merged([part for one in in_order(best.what_ifs) for part in one.lines(trace)])


def _ceilings(trace: Trace) -> Ceilings | None:
    return measure_ceilings(torch.device(trace.device), trace.threads) if trace.flops else None


def check_is_file(script: Path) -> None:
    """Raise DataError if there is no such script."""
    if script.is_dir():
        raise DataError(f"{script} is a folder: name the script in it that trains")
    if not script.is_file():
        raise DataError(f"{script} does not exist")
