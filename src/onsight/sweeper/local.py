"""The runs of a sweep on this machine: one after the other, each with all of it."""

from collections.abc import Sequence

from onsight.errors import Interrupted
from onsight.report.console import Reporter
from onsight.sweeper.folder import PlannedRun
from onsight.sweeper.one_run import run_one


def run_locally(runs: Sequence[PlannedRun], data: str, reporter: Reporter) -> dict[str, str]:
    """Train what has not finished; return why each run failed, if it did. Raises Interrupted."""
    errors = {}
    for number, run in enumerate(runs, 1):
        kept = ": finished before" if run.is_finished else ", resumed" if run.is_begun else ""
        reporter.say(f"run {number} of {len(runs)}: {run.name}{kept}")
        try:
            errors[run.name] = run_one(run, data)
        except Interrupted as stop:
            raise Interrupted(
                f"stopped in {run.name}; what it had done is kept, as are the runs before: "
                f"continue with --out {run.path.parent} --resume",
                stop.exit_code - 128,
            ) from stop
        if errors[run.name]:
            reporter.warn(f"{run.name} failed: {errors[run.name]}")
    return errors
