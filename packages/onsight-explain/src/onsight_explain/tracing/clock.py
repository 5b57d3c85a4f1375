"""Where a thread's time goes: every moment belongs to one phase, so the phases add up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from time import perf_counter

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
_ELSEWHERE = -1


class PhaseClock:
    """Adds up the seconds of each phase in the thread that created it; phases can be nested.

    The time of a nested phase is not counted for the outer one, except within `data`: whatever
    happens while the next batch is made belongs to it. on_phase: called with the new phase at
    every change, which happened at `since`. It is fast, because it is called many times a step.
    """

    def __init__(self, *on_phase: Callable[[str], None]) -> None:
        self.on_phase = list(on_phase)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._stack = ["other"]
        self._thread = get_ident()
        self.since = perf_counter()
        self.paused_seconds = 0.0  # in all
        self._before: tuple[float, dict[str, float]] | None = None

    @property
    def now(self) -> float:
        """A moment, in seconds, which stands still while the clock is paused."""
        return perf_counter() - self.paused_seconds

    @property
    def phase(self) -> str:
        """The current phase."""
        return self._stack[-1]

    def is_in(self, phase: str) -> bool:
        """Whether this phase is the current one or an outer one."""
        return phase in self._stack

    def is_elsewhere(self) -> bool:
        """Whether a call now is none of the training loop's: in another thread, or in `data`."""
        return self._stack[-1] == "data" or get_ident() != self._thread

    def enter(self, phase: str) -> int:
        """Begin a phase; `leave` takes the number returned."""
        if get_ident() != self._thread:
            return _ELSEWHERE
        stack, now = self._stack, perf_counter()
        outer = stack[-1]
        self._seconds[outer] += now - self.since
        self.since = now
        if outer == "data":
            phase = outer
        stack.append(phase)
        if self.on_phase and phase != outer:
            self._tell(phase)
        return len(stack) - 1

    def leave(self, depth: int) -> None:
        """End the phase, and any inside it that an error left open."""
        stack, now = self._stack, perf_counter()
        if depth == _ELSEWHERE or depth >= len(stack):
            return
        inner = stack[-1]
        self._seconds[inner] += now - self.since
        self.since = now
        del stack[depth:]
        if self.on_phase and stack[-1] != inner:
            self._tell(stack[-1])

    @contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Count the time inside for this phase."""
        depth = self.enter(phase)
        try:
            yield
        finally:
            self.leave(depth)

    def read(self) -> dict[str, float]:
        """Seconds by phase, up to now."""
        now = perf_counter()
        self._seconds[self._stack[-1]] += now - self.since
        self.since = now
        return dict(self._seconds)

    def pause(self) -> None:
        """Count nothing from here to `resume`, such as what is done only once."""
        self._before = perf_counter(), self.read()

    def resume(self) -> float:
        """Count again; the seconds that were left out."""
        if self._before is None:
            return 0.0
        begun, self._seconds = self._before
        self._before, self.since = None, perf_counter()
        self.paused_seconds += self.since - begun
        return self.since - begun

    def _tell(self, phase: str) -> None:
        for told in self.on_phase:
            told(phase)
