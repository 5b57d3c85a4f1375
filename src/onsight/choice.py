"""A value that Onsight chose, together with the reason."""

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True)
class Choice(Generic[Value]):
    """A chosen value, the reason, and the measured figure behind the reason, if any."""

    value: Value
    reason: str
    figure: float | None = None
