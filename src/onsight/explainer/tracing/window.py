"""Which stretch of a training is measured: after the warm-up, in whole epochs if possible."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_PAUSE_SECONDS = 0.02  # between two snapshots
_PATIENCE = 2.0  # times the seconds asked for, at most, to wait for the end of an epoch


@dataclass(frozen=True)
class Snapshot:
    """How far a training was at one moment."""

    moment: float
    steps: int
    images: int
    evaluated: int
    phases: dict[str, float]


class Window:
    """Opens after the warm-up and lasts so many seconds, or so many steps if that is shorter.

    If a whole epoch falls into it, only whole epochs are measured, so that the evaluation
    between them has its true share of the time.
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
        """A step has ended. done: how many steps so far."""
        if self.is_over:  # later steps are examined in slower ways
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
        """Whether enough has been seen."""
        if self._first is None or self._last is None:
            return False
        if self._last.steps - self._first.steps >= self.steps:
            return True
        elapsed = self._last.moment - self._first.moment
        waits = len(self._epochs) == 1  # until the first whole epoch ends
        return elapsed >= self.seconds * (_PATIENCE if waits else 1.0)

    def stretch(self) -> tuple[Snapshot, Snapshot, int] | None:
        """Its first and last snapshot and its whole epochs (0: a part of one); None before that."""
        if len(self._epochs) > 1:
            return self._epochs[0], self._epochs[-1], len(self._epochs) - 1
        if self._first is None or self._last is None:
            return None
        return self._first, self._last, 0
