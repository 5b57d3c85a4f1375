"""A line of the doctor: what was looked at, how it stands, and what to do."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Line:
    """One finding, in plain words.

    state: ok; note, which is good to know; warning, which costs speed or may fail later;
    problem, which stops runs or leaves hardware unused. remedy: what to do, a sentence; every
    further line of it is a command to type. figures: what was found, as plain values.
    """

    topic: str
    state: State
    said: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def count(lines: Iterable[Line], state: State) -> int:
    """How many lines are in a state."""
    return sum(line.state == state for line in lines)
