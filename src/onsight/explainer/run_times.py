"""Says where the time of a finished run went."""

from pathlib import Path
from typing import Any

from onsight.report.measured import phase_times
from onsight.report.run_files import read_results
from onsight.text import duration, percent

_MIN_SECONDS = 0.1  # phases shorter than this are left out
_ADVICE = {"folds": "--folds 1 leaves them out, and on a frozen network (--freeze) they are short"}


def describe_times(run: Path) -> str:
    """Name a run's longest phase first; "" if the run did not record its times."""
    results: Any = read_results(run)
    phases = phase_times(results)
    if not phases:
        return ""
    (name, seconds, share), *others = phases
    advice = f" ({_ADVICE[name]})" if name in _ADVICE else ""
    rest = [f"{other} {duration(value)}" for other, value, _ in others if value >= _MIN_SECONDS]
    return (
        f"{percent(share)} of the run's {duration(seconds / share)} went into {name}{advice}"
        f"{'; the rest: ' if rest else ''}{', '.join(rest)}."
    )
