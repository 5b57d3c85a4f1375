"""What if the CPU's threads were fewer or more, or waited differently?"""

import os

import torch

from onsight_explain.fixes.fix import Fix, LaunchAdvice
from onsight_explain.fixes.statements import RemoveStatement
from onsight_explain.fixes.whole_file import SetThreads
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.thread_settings import AFFINITY, UNSET, without_settings
from onsight_explain.script.trace import ThreadSetting, Trace
from onsight_explain.text import plural, step_times
from onsight_explain.threads import (
    SHORT_SPIN,
    SPIN_VARIABLE,
    THREAD_VARIABLES,
    chosen_spinning,
)
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

# Threads may wait so long in a step: some hundred operations, tens of microseconds in each.
_MAX_WAITING_SECONDS = 0.03


class ThreadCount(WhatIf):
    """Let torch compute with `value` threads."""

    value: int
    name = "threads"
    group = "threads"
    order = 50

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        if baseline.trace.device != "cpu" or baseline.is_busy:  # what gains there is luck elsewhere
            return []
        return [cls(count) for count in sorted({1, baseline.cores} - {baseline.trace.threads})]

    @property
    def label(self) -> str:
        return plural(self.value, "thread")

    def max_saving(self, baseline: Baseline) -> float:
        is_fewer = self.value < baseline.trace.threads
        return _max_waiting_share(baseline.trace) if is_fewer else super().max_saving(baseline)

    def install(self, hooks: Hooks) -> None:
        torch.set_num_threads(self.value)
        hooks.patches.put(torch, "set_num_threads", lambda count: None)

    def took_effect(self, trace: Trace) -> bool:
        return trace.threads == self.value

    def fixes(self, trace: Trace) -> list[Fix]:
        return [SetThreads(None, self.value)]

    def cause(self, trace: Trace) -> Cause:
        return _waiting_cause(trace)


class DefaultThreadSettings(WhatIf):
    """Removes the thread settings made by a script or its environment."""

    name = "thread_settings"
    group = "threads"
    order = 52
    rewrites_source = True
    label = "default thread settings"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        return [cls(True)] if baseline.trace.thread_settings else []

    def removes_fault(self, baseline: Baseline) -> bool:
        return True

    @property
    def environment(self) -> dict[str, str]:
        return dict.fromkeys(THREAD_VARIABLES, UNSET) | chosen_spinning(os.environ)

    def install(self, hooks: Hooks) -> None:
        if hasattr(os, "sched_setaffinity"):
            hooks.patches.put(os, "sched_setaffinity", lambda process, cores: None)
        hooks.on_source(without_settings)  # a library that is loaded later would read them

    def fixes(self, trace: Trace) -> list[Fix]:
        return [_remove_setting(setting) for setting in trace.thread_settings]

    def cause(self, trace: Trace) -> Cause:
        (step,) = step_times(trace.seconds / trace.steps)
        settings = " and ".join(
            f"{_describe_setting(setting)}, {_describe_place(setting)}"
            for setting in trace.thread_settings
        )
        return Cause(
            "threads",
            f"in steps of {step}, the compute threads are held back by {settings}",
        )


class ShortSpin(WhatIf):
    """Lets OpenMP's threads give up their cores sooner when they wait.

    It is an environment variable, because libgomp reads it when torch is loaded.
    """

    name = "short_spin"
    group = "threads"
    order = 55
    label = "short spin-waits of threads"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        has_several = baseline.trace.device == "cpu" and baseline.trace.threads > 1
        is_free = os.environ.get(SPIN_VARIABLE, SHORT_SPIN) == SHORT_SPIN  # not set by the user
        return [cls(True)] if has_several and is_free and not baseline.is_busy else []

    def max_saving(self, baseline: Baseline) -> float:
        return _max_waiting_share(baseline.trace)

    @property
    def environment(self) -> dict[str, str]:
        return {SPIN_VARIABLE: SHORT_SPIN}

    def fixes(self, trace: Trace) -> list[Fix]:
        return [LaunchAdvice(None, f"start it with {SPIN_VARIABLE}={SHORT_SPIN} set")]

    def cause(self, trace: Trace) -> Cause:
        return _waiting_cause(trace)


def _max_waiting_share(trace: Trace) -> float:
    """Return how much of a step threads may lose by waiting for each other, at most."""
    return min(1.0, _MAX_WAITING_SECONDS * trace.steps / trace.seconds)


def _waiting_cause(trace: Trace) -> Cause:
    (step,) = step_times(trace.seconds / trace.steps)
    return Cause(
        "threads",
        f"in steps of {step}, {trace.threads} compute threads wait for each other more than "
        "they help",
    )


def _describe_setting(setting: ThreadSetting) -> str:
    if setting.name == AFFINITY:
        return f"{AFFINITY} to {setting.value}"
    return f"{setting.name}={setting.value}"


def _describe_place(setting: ThreadSetting) -> str:
    return f"at {setting.site}" if setting.site else "in the environment"


def _remove_setting(setting: ThreadSetting) -> Fix:
    words = _describe_setting(setting)
    if setting.site:
        return RemoveStatement(setting.site, f"this line, which sets {words}")
    return LaunchAdvice(None, f"start it without {words}: unset {setting.name}")
