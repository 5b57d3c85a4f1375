"""A choice travels with its reason."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Choice(Generic[Value]):
    """A value that Onsight chose, why, and the figure that the reason rests on, if any."""

    value: Value
    reason: str
    figure: float | None = None
