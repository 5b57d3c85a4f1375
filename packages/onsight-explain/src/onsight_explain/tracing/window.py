"""Which stretch of a training is measured: after the warm-up, in whole epochs if possible."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_PAUSE_SECONDS = 0.02  # between two snapshots
_PATIENCE = 2.0  # times the seconds asked for, at most, to wait for the end of an epoch
_SLOWEST = 3.0  # times as long as expected, at most, for the images of an epoch


@dataclass(frozen=True)
class Epoch:
    """As many images as are trained on in whole epochs, and how long that takes, about.

    has_evaluation: whether an evaluation follows each, of which the first is a warm-up too.
    """

    images: int
    seconds: float
    has_evaluation: bool = False


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
    between them has its true share of the time. If it is known how many images make an epoch, that
    many are measured, or a multiple, from wherever the training is.
    """

    def __init__(
        self,
        seconds: float,
        steps: int,
        warm_up_steps: int,
        look: Callable[[], Snapshot],
        warm_up_seconds: float = 0.5,
        epoch: Epoch | None = None,
    ) -> None:
        self.seconds, self.steps, self.known = seconds, steps, epoch
        self.warm_up_epochs = 0
        self.warm_up_steps, self.warm_up_seconds = warm_up_steps, warm_up_seconds
        self._look = look
        self._opened: float | None = None
        self._first: Snapshot | None = None
        self._last: Snapshot | None = None
        self._epochs: list[Snapshot] = []
        self._begun = 0  # epochs, since the first step
        self._is_multiple = False  # whether the last snapshot is the first after a whole epoch

    def step(self, done: int) -> None:
        """A step has ended. done: how many steps so far."""
        if self.is_over:  # later steps are examined in slower ways
            return
        now = time.perf_counter()
        self._opened = self._opened or now
        if self._first is None:
            warm = done >= self.warm_up_steps and now - self._opened >= self.warm_up_seconds
            warm &= self._begun >= self.warm_up_epochs
            self._first = self._look() if warm else None
            return
        if self._last is None or self.known or now - self._last.moment >= _PAUSE_SECONDS:
            before, self._last = self._whole_epochs(), self._look()
            self._is_multiple = self._whole_epochs() > before

    def epoch(self) -> None:
        """An epoch begins."""
        self._begun += self._opened is not None
        if self._first is not None and not self.is_over:
            self._epochs.append(self._look())

    @property
    def is_over(self) -> bool:
        """Whether enough has been seen."""
        if self._first is None or self._last is None:
            return False
        elapsed = self._last.moment - self._first.moment
        if self.known:
            if elapsed >= _SLOWEST * max(self.seconds, self.known.seconds):
                return True
            return elapsed >= self.seconds and self._is_multiple
        if self._last.steps - self._first.steps >= self.steps:
            return True
        waits = len(self._epochs) == 1  # until the first whole epoch ends
        return elapsed >= self.seconds * (_PATIENCE if waits else 1.0)

    def stretch(self) -> tuple[Snapshot, Snapshot, int] | None:
        """Its first and last snapshot and its whole epochs (0: a part of one); None before that."""
        if len(self._epochs) > 1 and not self.known:
            return self._epochs[0], self._epochs[-1], len(self._epochs) - 1
        if self._first is None or self._last is None:
            return None
        return self._first, self._last, self._whole_epochs()

    def _whole_epochs(self) -> int:
        """Of the known one, so far."""
        if self.known is None or self._first is None or self._last is None:
            return 0
        return (self._last.images - self._first.images) // self.known.images
