"""Assign all of a thread's time to phases, so that the phases add up to the elapsed time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter
from typing import Any

PHASES = {
    "data": "waiting for data",
    "copy": "copying to the device",
    "augment": "augmentation",
    "forward": "forward and loss",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "metrics": "metrics",
    "sync": "reading values (host sync)",
    "other": "other Python",
}
_OTHER_THREAD = -1


class PhaseClock:
    """Sums the seconds of each phase in the thread that created the clock.

    Phases nest, and the time of an inner phase is not counted for the outer one. The exception is
    `data`: everything that happens while the next batch is prepared counts as `data`. The methods
    are fast because they run many times per step.
    """

    def __init__(self, *on_phase: Callable[[str], None]) -> None:
        self.on_phase = list(on_phase)  # called with the new phase at every change
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._stack = ["other"]
        self._thread = get_ident()
        self.since = perf_counter()  # when the current phase began
        self.paused_seconds = 0.0  # sum of all pauses
        self._before_pause: tuple[float, dict[str, float]] | None = None

    @property
    def now(self) -> float:
        """The time in seconds, which stands still while the clock is paused."""
        return perf_counter() - self.paused_seconds

    @property
    def phase(self) -> str:
        """The current phase."""
        return self._stack[-1]

    def is_in(self, phase: str) -> bool:
        """Return whether this phase is the current one or encloses it."""
        return phase in self._stack

    def is_elsewhere(self) -> bool:
        """Return whether the caller is outside the training loop: in `data` or another thread."""
        return self._stack[-1] == "data" or get_ident() != self._thread

    def enter(self, phase: str) -> int:
        """Begin a phase and return the token that `leave` needs."""
        if get_ident() != self._thread:
            return _OTHER_THREAD
        stack, now = self._stack, perf_counter()
        outer = stack[-1]
        self._seconds[outer] += now - self.since
        self.since = now
        if outer == "data":
            phase = outer
        stack.append(phase)
        if self.on_phase and phase != outer:
            self._notify(phase)
        return len(stack) - 1

    def leave(self, token: int) -> None:
        """End the phase, and any inner ones that an exception left open."""
        stack, now = self._stack, perf_counter()
        if token == _OTHER_THREAD or token >= len(stack):
            return
        inner = stack[-1]
        self._seconds[inner] += now - self.since
        self.since = now
        del stack[token:]
        if self.on_phase and stack[-1] != inner:
            self._notify(stack[-1])

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Count the time of the `with` block for this phase."""
        token = self.enter(phase)
        try:
            yield
        finally:
            self.leave(token)

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase so far."""
        now = perf_counter()
        self._seconds[self._stack[-1]] += now - self.since
        self.since = now
        return dict(self._seconds)

    def pause(self) -> None:
        """Stop counting until `resume`, for work that happens only once."""
        self._before_pause = perf_counter(), self.read()

    def resume(self) -> None:
        """Continue counting after `pause`."""
        if self._before_pause is not None:
            began, self._seconds = self._before_pause
            self._before_pause, self.since = None, perf_counter()
            self.paused_seconds += self.since - began

    def _notify(self, phase: str) -> None:
        for callback in self.on_phase:
            callback(phase)


def timed(
    original: Callable[..., Any], clock: PhaseClock, phase: str | Callable[[], str]
) -> Callable[..., Any]:
    """Wrap a function so that its time counts for a phase, which may be determined at each call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        current = phase if isinstance(phase, str) else phase()
        if clock.phase == current:  # nested in a call that is already being timed
            return original(*args, **kwargs)
        token = clock.enter(current)
        try:
            return original(*args, **kwargs)
        finally:
            clock.leave(token)

    return call
