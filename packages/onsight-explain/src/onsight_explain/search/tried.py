"""What a search tries: changes, measured on a bench, and what they gave."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from onsight_explain.interval import Interval

Losses = Literal["same", "close", "alike", "other", "not comparable"]


class Change(Hashable, Protocol):
    """One thing changed: of each group, only one at a time."""

    @property
    def label(self) -> str:
        """The change in a few words."""

    @property
    def group(self) -> str:
        """What it changes."""


C = TypeVar("C", bound=Change)


class Untried(Exception):
    """Changes that could not be measured; the message says why, in one line."""


class Trial(Protocol):
    """A training with some changes, which goes on only while it is measured."""

    def measure(self, seconds: float) -> float:
        """Images per second over about so long. Raises Untried."""

    def losses(self) -> Losses:
        """How its first losses compare with those of the unchanged training."""

    def notes(self) -> list[str]:
        """What was not possible, or not completely."""

    def close(self) -> None:
        """Give its memory back; measuring it again starts it anew."""


class Bench(Protocol[C]):
    """Makes trials."""

    def open(self, changes: tuple[C, ...]) -> Trial:
        """A trial with these changes, none for the unchanged training."""

    def worth(self, trial: Any) -> list[C]:
        """The changes that could make a trial of its own faster, the most promising first."""


@dataclass(frozen=True)
class Tried(Generic[C]):
    """What one or several changes gave, measured beside the unchanged training.

    interval: of the ratio; None if there is a problem, which then says why.
    """

    changes: tuple[C, ...]
    images_per_second: float = 0.0
    interval: Interval | None = None
    losses: Losses = "not comparable"
    problem: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The changes in a few words."""
        return " + ".join(one.label for one in self.changes)

    @property
    def groups(self) -> set[str]:
        """What they change."""
        return {one.group for one in self.changes}

    @property
    def ratio(self) -> float:
        """Times the speed without them, the mean of the rounds; 0 if there is a problem."""
        return self.interval.ratio if self.interval else 0.0

    @property
    def low(self) -> float:
        """What it is at least, times the speed without them."""
        return self.interval.low if self.interval else 0.0
