"""What if nothing told OpenMP's threads how to wait, how many to be, and where to run?"""

import os

from onsight_explain.mend.blocks import Without
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.whole import Outside
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.thread_settings import AFFINITY, UNSET, without_settings
from onsight_explain.script.trace import ThreadSetting, Trace
from onsight_explain.text import step_times
from onsight_explain.thread_variables import VARIABLES
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf


class ThreadSettings(WhatIf):
    """Takes the settings of a script and of its environment away."""

    name = "thread_settings"
    group = "threads"
    order = 52
    rewrites = True
    label = "no settings of threads"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        return [cls(True)] if seen.trace.thread_settings else []

    def removes_fault(self, seen: Seen) -> bool:
        return True

    @property
    def environment(self) -> dict[str, str]:
        return dict.fromkeys(VARIABLES, UNSET)

    def install(self, hooks: Hooks) -> None:
        if hasattr(os, "sched_setaffinity"):
            hooks.patches.put(os, "sched_setaffinity", lambda process, cores: None)
        hooks.on_source(without_settings)  # a library that is loaded later would read them

    def lines(self, trace: Trace) -> list[Mend]:
        return [_mend(one) for one in trace.thread_settings]

    def cause(self, trace: Trace) -> Cause:
        (step,) = step_times(trace.seconds / trace.steps)
        found = " and ".join(_where(one) for one in trace.thread_settings)
        return Cause(
            "threads",
            f"in steps of {step}, the compute threads are held back by {found}",
        )


def _where(setting: ThreadSetting) -> str:
    place = f"at {setting.site}" if setting.site else "in the environment"
    return f"{_words(setting)}, {place}"


def _words(setting: ThreadSetting) -> str:
    if setting.name == AFFINITY:
        return f"{AFFINITY} to {setting.value}"
    return f"{setting.name}={setting.value}"


def _mend(setting: ThreadSetting) -> Mend:
    if setting.site:
        return Without(setting.site, f"this line, which sets {_words(setting)}")
    return Outside(None, f"start it without {_words(setting)}: unset {setting.name}")
