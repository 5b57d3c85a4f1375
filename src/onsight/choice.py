"""A value that Onsight chose, together with the reason."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Choice(Generic[Value]):
    """A chosen value and why; the console, plan.json and the report all show the same reason."""

    value: Value
    reason: str
    figure: float | None = None  # the measurement behind the reason, if there is one
