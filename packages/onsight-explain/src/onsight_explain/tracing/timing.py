"""Functions whose time is counted for a phase."""

from collections.abc import Callable
from typing import Any

from onsight_explain.tracing.clock import PhaseClock


def timed(
    original: Callable[..., Any], clock: PhaseClock, phase: str | Callable[[], str]
) -> Callable[..., Any]:
    """The function, with its time counted. phase: also one to be asked for at each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        now = phase if isinstance(phase, str) else phase()
        if clock.phase == now:  # inside a call whose time is counted already
            return original(*args, **kwargs)
        depth = clock.enter(now)
        try:
            return original(*args, **kwargs)
        finally:
            clock.leave(depth)

    return call
