"""A what-if: one thing changed in a script from outside, and everything about that change."""

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from onsight_explain.mend.mend import Mend
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import LoaderFacts, Trace


@dataclass(frozen=True)
class Seen:
    """What is known of a script before anything is tried."""

    trace: Trace
    tree: ast.Module
    cores: int


@dataclass(frozen=True)
class Cause:
    """What holds a script back: a short name, and a sentence with the evidence."""

    name: str
    sentence: str


@dataclass(frozen=True)
class WhatIf(ABC):
    """One change. A subclass is a kind of change, an object one value of it.

    value: plain, because it is sent to the process that runs the script; name: of the kind, in
    that message and in --json; group: only one what-if of a group is applied at a time;
    order: those with lower numbers are applied first (loaders 10 to 49, the process 50 to 69, the
    network 70 to 89, the first of them outermost, then the rest); keeps_batches: whether each step
    still trains on the same images, so that losses compare; rewrites: whether it changes the text
    of the script, before it is compiled; phases: those that it can shorten, if not all: the search
    begins with what-ifs for the longest phases, and leaves out those for phases of no length.
    """

    value: Any
    name: ClassVar[str]
    group: ClassVar[str]
    order: ClassVar[int] = 90
    keeps_batches: ClassVar[bool] = True
    rewrites: ClassVar[bool] = False
    phases: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def worth(cls, seen: Seen) -> list["WhatIf"]:
        """The values that could help this script."""

    @property
    @abstractmethod
    def label(self) -> str:
        """The change in a few words, for people."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the process that runs the script."""
        return {}

    def install(self, hooks: Hooks) -> None:  # noqa: B027 (a what-if can change the environment only)
        """Make the change, in the process that runs the script, before it starts."""

    def shows(self, trace: Trace) -> bool:
        """Whether a run with this change really had it: a framework may have overruled it."""
        return True

    @abstractmethod
    def lines(self, trace: Trace) -> list[Mend]:
        """The same change in the script's text."""

    def is_for(self, loader: LoaderFacts) -> bool:
        """Whether evaluation's loader needs the same change, if evaluation takes its time."""
        return False

    @abstractmethod
    def cause(self, trace: Trace) -> Cause:
        """What held the script back, if this change gained most."""

    def most_saved(self, seen: Seen) -> float:
        """What it could save at most, as a share of the time."""
        return seen.trace.share(*self.phases) if self.phases else 1.0

    def removes_fault(self, seen: Seen) -> bool:
        """Whether it removes what was seen to be a fault, and is tried before mere guesses."""
        return False

    def failure(self, said: str) -> str:
        """Why the script failed with this change, from all that it said; "" if it said so best."""
        return ""
