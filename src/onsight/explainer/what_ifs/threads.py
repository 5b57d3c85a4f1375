"""What if the CPU computed with another number of threads?"""

import torch

from onsight.explainer.mend.advice import Edit, Line
from onsight.explainer.script.hooks import Hooks
from onsight.explainer.script.trace import Trace
from onsight.explainer.what_ifs.what_if import Cause, Seen, WhatIf
from onsight.words import plural, step_times


class Threads(WhatIf):
    """value: how many."""

    value: int
    name = "threads"
    group = "threads"
    order = 50

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        if seen.trace.device != "cpu":
            return []
        return [cls(count) for count in sorted({1, seen.cores} - {seen.trace.threads})]

    @property
    def label(self) -> str:
        return plural(self.value, "thread")

    def install(self, hooks: Hooks) -> None:
        torch.set_num_threads(self.value)
        hooks.patches.put(torch, "set_num_threads", lambda count: None)

    def lines(self, trace: Trace) -> list[Edit | Line]:
        return [Line(None, f"torch.set_num_threads({self.value})  # at the start")]

    def cause(self, trace: Trace) -> Cause:
        return threads_cause(trace)


def threads_cause(trace: Trace) -> Cause:
    """Threads that wait for each other."""
    (step,) = step_times(trace.seconds / trace.steps)
    return Cause(
        "threads",
        f"in steps of {step}, {trace.threads} compute threads wait for each other more than "
        "they help",
    )
