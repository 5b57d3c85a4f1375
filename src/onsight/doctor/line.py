"""A line of the doctor's report: what a check found, and what to do about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Line:
    """What one check found, in plain words.

    state: ok; note (good to know); warning (costs speed, or may fail later); problem (stops runs,
    or leaves hardware unused). said: the finding; remedy: what to do about it, a sentence, and
    below it the commands to type, one a line. figures: what was found, as plain values.
    """

    state: State
    said: str
    remedy: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def count(lines: Mapping[str, Line], state: State) -> int:
    """How many lines are in a state."""
    return sum(line.state == state for line in lines.values())
