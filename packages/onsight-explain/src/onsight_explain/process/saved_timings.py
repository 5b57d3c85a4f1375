"""Saved timings in place of measured ones, so that two versions of `explain` can be compared.

The scripts still run, with and without each change, but every figure that depends on a clock comes
from the JSON file that ONSIGHT_SAVED_TIMINGS names, so the same code finds the same cause and fix.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from onsight_explain.json_dataclasses import from_json
from onsight_explain.script.trace import Trace

_VARIABLE = "ONSIGHT_SAVED_TIMINGS"
_STEPS = 100
_LOSSES = 16


@dataclass(frozen=True)
class SavedTimings:
    """How long a script's steps take, and how much faster each change makes them."""

    step_seconds: float
    phases: dict[str, float]  # shares of the time
    item_seconds: float = 0.0  # to make one item of the data set
    # By the change's name in --json; 1 for all others.
    speedups: dict[str, float] = field(default_factory=dict)

    def replace(self, trace: Trace, changes: list[str]) -> Trace:
        """Return the trace of a window as if it had taken the saved time, with these changes."""
        if not trace.images:
            return trace
        seconds = _STEPS * self.step_seconds
        for name in changes:
            seconds /= self.speedups.get(name, 1.0)
        batch_size = round(trace.images / trace.steps)
        item = trace.item and dataclasses.replace(
            trace.item, seconds=self.item_seconds, waiting_share=0.0, transform_share=0.9
        )
        return dataclasses.replace(
            trace,
            startup_seconds=1.0,
            seconds=seconds,
            steps=_STEPS,
            images=_STEPS * batch_size,
            evaluated=0,
            epochs=0,
            phases={name: share * seconds for name, share in self.phases.items()},
            item=item,
            losses=trace.losses[:_LOSSES],
            reads=[
                dataclasses.replace(one, per_step=round(one.per_step, 0)) for one in trace.reads
            ],
            graphs_kept=min(trace.graphs_kept, 1),
            bytes=round(trace.bytes, -4),  # a count that varies by some bytes
        )


def read_saved_timings() -> SavedTimings | None:
    """Read the file that the environment names, if it names one."""
    path = os.environ.get(_VARIABLE)
    return from_json(SavedTimings, Path(path).read_bytes()) if path else None
