"""What if waiting OpenMP threads gave up their cores sooner?"""

import os

from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import Outside
from onsight_explain.script.trace import Trace
from onsight_explain.spinning import SHORT_SPIN, SPIN_VARIABLE
from onsight_explain.what_ifs.threads import threads_cause, waiting_share
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class ShortSpin(WhatIf):
    """Set by an environment variable that is read when torch is loaded."""

    name = "short_spin"
    group = "threads"
    order = 55
    label = "threads that spin briefly"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        is_several = seen.trace.device == "cpu" and seen.trace.threads > 1
        is_free = os.environ.get(SPIN_VARIABLE, SHORT_SPIN) == SHORT_SPIN  # not chosen by the user
        return [cls(True)] if is_several and is_free else []

    def most_saved(self, seen: Seen) -> float:
        return waiting_share(seen.trace)

    @property
    def environment(self) -> dict[str, str]:
        return {SPIN_VARIABLE: SHORT_SPIN}

    def lines(self, trace: Trace) -> list[Mend]:
        return [Outside(None, f"start it with {SPIN_VARIABLE}={SHORT_SPIN} set")]

    def cause(self, trace: Trace) -> Cause:
        return threads_cause(trace)
