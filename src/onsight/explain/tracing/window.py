"""Which stretch of a training is measured: after warming up, whole epochs where they are short."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_PAUSE_SECONDS = 0.02  # between two looks
_PATIENCE = 2.0  # times the seconds asked, at most, to see an epoch end


@dataclass(frozen=True)
class Snapshot:
    """How far a training was at a moment."""

    moment: float
    steps: int
    images: int
    evaluated: int
    phases: dict[str, float]


class Window:
    """Begins after some steps and lasts so many seconds.

    Where at least one epoch begins and ends within, the stretch is cut to whole epochs, so that
    an evaluation between them has its true share. steps: the most that are measured.
    """

    def __init__(
        self,
        seconds: float,
        steps: int,
        warm_up_steps: int,
        look: Callable[[], Snapshot],
        warm_up_seconds: float = 0.5,
    ) -> None:
        self.seconds, self.steps = seconds, steps
        self.warm_up_steps, self.warm_up_seconds = warm_up_steps, warm_up_seconds
        self._look = look
        self._opened: float | None = None
        self._first: Snapshot | None = None
        self._last: Snapshot | None = None
        self._epochs: list[Snapshot] = []

    def step(self, done: int) -> None:
        """A step has ended; done: how many did so far."""
        if self.is_over:  # what comes now is looked at in slower ways
            return
        now = time.perf_counter()
        self._opened = self._opened or now
        if self._first is None:
            warm = done >= self.warm_up_steps and now - self._opened >= self.warm_up_seconds
            self._first = self._look() if warm else None
            return
        if self._last is None or now - self._last.moment >= _PAUSE_SECONDS:
            self._last = self._look()

    def epoch(self) -> None:
        """An epoch begins."""
        if self._first is not None and not self.is_over:
            self._epochs.append(self._look())

    @property
    def is_over(self) -> bool:
        """Whether enough was seen."""
        if self._first is None or self._last is None:
            return False
        if self._last.steps - self._first.steps >= self.steps:
            return True
        elapsed = self._last.moment - self._first.moment
        waits = len(self._epochs) == 1  # for the end of the first whole epoch
        return elapsed >= self.seconds * (_PATIENCE if waits else 1.0)

    def stretch(self) -> tuple[Snapshot, Snapshot, int] | None:
        """The first and the last moment, and how many whole epochs (0: a part of one)."""
        if len(self._epochs) > 1:
            return self._epochs[0], self._epochs[-1], len(self._epochs) - 1
        if self._first is None or self._last is None:
            return None
        return self._first, self._last, 0
