"""A what-if: one change made to a script from outside, and everything about that change.

The modules of this folder are plugins: every concrete subclass of WhatIf in them is tried.
"""

import ast
import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import isabstract
from typing import Any, ClassVar

from onsight_explain import what_ifs
from onsight_explain.fixes.fix import Fix
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import LoaderFacts, Plain, Trace

_MIN_SAVING = 0.03  # fraction of the time; changes that can save less are not tried
_MIN_FAULT = 0.1  # fraction of the time; the removal of smaller faults is not tried first


@dataclass(frozen=True)
class Baseline:
    """Measurements of the unchanged script, available before any change is tried."""

    trace: Trace
    tree: ast.Module
    cores: int
    is_busy: bool = False  # whether other processes keep the machine busy


@dataclass(frozen=True)
class Cause:
    """The reason why a script is slow."""

    name: str  # short, for programs
    sentence: str  # with the evidence
    noise: str = ""  # why timings cannot show what helps; "" if they can


@dataclass(frozen=True)
class WhatIf(ABC):
    """A change to try. A subclass is a kind of change; an instance has one value of it."""

    value: Any  # a JSON value, to be sent to the process that runs the script
    name: ClassVar[str]  # identifies the kind in that message
    group: ClassVar[str]  # only one what-if of a group is applied at a time
    # Lower numbers are applied first: loaders 10 to 49, the process 50 to 69, the network 70 to 89
    # (the first of them is the outermost), then the rest.
    order: ClassVar[int] = 90
    keeps_batches: ClassVar[bool] = True  # same images per step: losses can be compared
    rewrites_source: ClassVar[bool] = False  # whether it changes the script before it is compiled
    # The phases that the change can shorten; empty for all. Longer phases are tried first.
    phases: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def candidates(cls, baseline: Baseline) -> list["WhatIf"]:
        """Return the values that could speed up this script."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A short description of the change."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the process that runs the script."""
        return {}

    def install(self, hooks: Hooks) -> None:  # noqa: B027 (a what-if can change the environment only)
        """Make the change, in the process that runs the script, before it starts."""

    def took_effect(self, trace: Trace) -> bool:
        """Return whether the change took effect in a run: a framework may override it."""
        return True

    @abstractmethod
    def fixes(self, trace: Trace) -> list[Fix]:
        """Return the fixes that make the same change in the script's text."""

    def caution(self, trace: Trace) -> str:
        """Return what else must be changed or checked if this change is made, or ""."""
        return ""

    def applies_to_evaluation(self, loader: LoaderFacts) -> bool:
        """Whether the fixes also apply to the loader of a long evaluation."""
        return False

    @abstractmethod
    def cause(self, trace: Trace) -> Cause:
        """Return the reason why the script is slow, if this change gained most."""

    def max_saving(self, baseline: Baseline) -> float:
        """Return an upper bound of the time that the change could save, as a share."""
        return baseline.trace.share(*self.phases) if self.phases else 1.0

    def removes_fault(self, baseline: Baseline) -> bool:
        """Return whether the change removes a measured fault; such changes are tried first."""
        return False

    def explain_failure(self, output: str) -> str:
        """Return why the script failed with this change, or "" if its output says so best."""
        return ""


@cache
def all_kinds() -> tuple[type[WhatIf], ...]:
    """Return the kinds of what-ifs in the files of the folder, by their order, then by name."""
    files = pkgutil.iter_modules(what_ifs.__path__, f"{what_ifs.__name__}.")
    modules = [import_module(file.name) for file in files]
    kinds = {kind for module in modules for kind in vars(module).values() if _is_concrete(kind)}
    return tuple(sorted(kinds, key=lambda kind: (kind.order, kind.name)))


def choose_what_ifs(baseline: Baseline) -> list[WhatIf]:
    """Return the what-ifs to try: first those against faults, then by what they could save.

    Time may not allow all of them. A what-if counts for half, a third ... of what it could save if
    one, two ... others of the same phases come before it, so that no phase is left out.
    """
    candidates = [what_if for kind in all_kinds() for what_if in kind.candidates(baseline)]
    savings = {what_if: what_if.max_saving(baseline) for what_if in candidates}
    able = [what_if for what_if in candidates if savings[what_if] >= _MIN_SAVING]
    before = Counter[tuple[str, ...]]()
    for what_if in sorted(able, key=lambda what_if: -savings[what_if]):
        before[what_if.phases] += 1
        savings[what_if] /= before[what_if.phases]
    faults = {
        what_if
        for what_if in able
        if what_if.removes_fault(baseline) and what_if.max_saving(baseline) >= _MIN_FAULT
    }
    return sorted(able, key=lambda what_if: (what_if not in faults, -savings[what_if]))


def make_what_ifs(changes: dict[str, Plain]) -> list[WhatIf]:
    """Make the what-ifs of these names and values, in the order of application.

    Raises KeyError for an unknown name.
    """
    kinds = {kind.name: kind for kind in all_kinds()}
    return in_order([kinds[name](value) for name, value in changes.items()])


def in_order(what_ifs: Iterable[WhatIf]) -> list[WhatIf]:
    """Sort what-ifs in the order of application."""
    return sorted(what_ifs, key=lambda what_if: all_kinds().index(type(what_if)))


def _is_concrete(value: object) -> bool:
    """Return whether an object is a subclass of WhatIf without abstract methods."""
    return isinstance(value, type) and issubclass(value, WhatIf) and not isabstract(value)
