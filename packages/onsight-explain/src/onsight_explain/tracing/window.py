"""Chooses which stretch of a training is measured: after warm-up, in whole epochs if possible."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_SNAPSHOT_SECONDS = 0.02  # between two snapshots
_PATIENCE = 2.0  # wait at most this many times the requested seconds for the end of an epoch
_SLOWEST = 3.0  # give up an epoch that takes this many times as long as expected


@dataclass(frozen=True)
class Epoch:
    """How many images whole epochs train on, and roughly how long they take."""

    images: int
    seconds: float
    has_evaluation: bool = False  # after each epoch; the first one is a warm-up as well


@dataclass(frozen=True)
class WindowProgress:
    """How far a training was at one moment."""

    moment: float
    steps: int
    images: int
    evaluated: int
    phases: dict[str, float]


class MeasurementWindow:
    """Opens after the warm-up and lasts for some seconds or steps, whichever is shorter.

    If it contains a whole epoch, only whole epochs are measured, so that the evaluation between
    them has its true share of the time. If the size of an epoch is known in advance, that many
    images or a multiple are measured, starting anywhere.
    """

    def __init__(
        self,
        seconds: float,
        steps: int,
        warm_up_steps: int,
        read_progress: Callable[[], WindowProgress],
        warm_up_seconds: float = 0.5,
        epoch: Epoch | None = None,
    ) -> None:
        self.seconds, self.steps, self.known_epoch = seconds, steps, epoch
        self.warm_up_epochs = 0
        self.warm_up_steps, self.warm_up_seconds = warm_up_steps, warm_up_seconds
        self._read_progress = read_progress
        self._opened: float | None = None
        self._first: WindowProgress | None = None
        self._last: WindowProgress | None = None
        self._epoch_starts: list[WindowProgress] = []
        self._epochs_begun = 0  # since the first step
        self._is_multiple = False  # whether the last snapshot is the first after a whole epoch

    def step(self, done: int) -> None:
        """Note that a step has ended, `done` in total."""
        if self.is_over:  # later steps are examined in slower ways
            return
        now = time.perf_counter()
        self._opened = self._opened or now
        if self._first is None:
            warm = done >= self.warm_up_steps and now - self._opened >= self.warm_up_seconds
            warm &= self._epochs_begun >= self.warm_up_epochs
            self._first = self._read_progress() if warm else None
            return
        if self._last is None or self.known_epoch or now - self._last.moment >= _SNAPSHOT_SECONDS:
            before, self._last = self._whole_epochs(), self._read_progress()
            self._is_multiple = self._whole_epochs() > before

    def epoch(self) -> None:
        """Note that an epoch begins."""
        self._epochs_begun += self._opened is not None
        if self._first is not None and not self.is_over:
            self._epoch_starts.append(self._read_progress())

    @property
    def is_over(self) -> bool:
        """Whether enough has been measured."""
        if self._first is None or self._last is None:
            return False
        elapsed = self._last.moment - self._first.moment
        if self.known_epoch:
            if elapsed >= _SLOWEST * max(self.seconds, self.known_epoch.seconds):
                return True
            return elapsed >= self.seconds and self._is_multiple
        if self._last.steps - self._first.steps >= self.steps:
            return True
        awaits_epoch_end = len(self._epoch_starts) == 1
        return elapsed >= self.seconds * (_PATIENCE if awaits_epoch_end else 1.0)

    def stretch(self) -> tuple[WindowProgress, WindowProgress, int] | None:
        """Return its first and last snapshot and the number of whole epochs between them.

        The number is 0 for a part of an epoch; None if there are no two snapshots yet.
        """
        if len(self._epoch_starts) > 1 and not self.known_epoch:
            return self._epoch_starts[0], self._epoch_starts[-1], len(self._epoch_starts) - 1
        if self._first is None or self._last is None:
            return None
        return self._first, self._last, self._whole_epochs()

    def _whole_epochs(self) -> int:
        """Return how often the known epoch fits into what was measured; 0 without one."""
        if self.known_epoch is None or self._first is None or self._last is None:
            return 0
        return (self._last.images - self._first.images) // self.known_epoch.images
