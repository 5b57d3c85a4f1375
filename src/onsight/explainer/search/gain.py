"""When a change counts as faster, and which changes are kept together."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

# A machine is never quiet, so smaller gains mean nothing.
GAIN = 1.05  # times the speed, at least, to be called faster
BETTER = 1.03  # times the speed of what a combination would replace


class Measured(Protocol):
    """Changes that were tried: their gain, and the groups that they belong to."""

    @property
    def ratio(self) -> float:
        """Times the speed without them."""

    @property
    def groups(self) -> set[str]:
        """Only one change of a group can be made at a time."""


T = TypeVar("T", bound=Measured)


def combine(tried: Sequence[T], try_both: Callable[[T, T], T], most: int) -> T | None:
    """The fastest change, with each next one that adds to it; None where none is faster.

    try_both: measures two together; most: how often it is called, at most.
    """
    faster = sorted((one for one in tried if one.ratio >= GAIN), key=lambda one: -one.ratio)
    if not faster:
        return None
    best = faster[0]
    others = [one for one in faster if not one.groups & best.groups]
    for other in others[:most]:
        if best.groups & other.groups:
            continue
        both = try_both(best, other)
        best = both if both.ratio >= BETTER * best.ratio else best
    return best
