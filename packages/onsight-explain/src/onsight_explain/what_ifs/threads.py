"""What if the CPU computed with another number of threads?"""

import torch

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import SetThreads
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import plural, step_times
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_WAITING_SECONDS = 0.03  # in a step: some hundred operations, and tens of microseconds for each


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

    def most_saved(self, seen: Seen) -> float:
        is_fewer = self.value < seen.trace.threads
        return waiting_share(seen.trace) if is_fewer else super().most_saved(seen)

    def install(self, hooks: Hooks) -> None:
        torch.set_num_threads(self.value)
        hooks.patches.put(torch, "set_num_threads", lambda count: None)

    def shows(self, trace: Trace) -> bool:
        return trace.threads == self.value

    def lines(self, trace: Trace) -> list[Mend]:
        return [SetThreads(None, self.value)]

    def cause(self, trace: Trace) -> Cause:
        return threads_cause(trace)


def waiting_share(trace: Trace) -> float:
    """What threads may lose in a step by waiting for each other, as a share of it, at most."""
    return min(1.0, _WAITING_SECONDS * trace.steps / trace.seconds)


def threads_cause(trace: Trace) -> Cause:
    """Threads that wait for each other."""
    (step,) = step_times(trace.seconds / trace.steps)
    return Cause(
        "threads",
        f"in steps of {step}, {trace.threads} compute threads wait for each other more than "
        "they help",
    )
