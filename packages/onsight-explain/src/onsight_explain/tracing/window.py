"""Chooses which steps of a training run to measure: after warm-up, in whole epochs if possible."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_SNAPSHOT_SECONDS = 0.02  # minimum time between two snapshots
_MAX_EPOCH_WAIT = 2.0  # wait at most this many times the requested seconds for an epoch to end
_MAX_EPOCH_RATIO = 3.0  # abandon an epoch that takes this many times as long as expected


@dataclass(frozen=True)
class Epoch:
    """The size of an epoch, and roughly how long it takes."""

    images: int
    seconds: float
    has_evaluation: bool = False  # after each epoch; the first one is a warm-up as well


@dataclass(frozen=True)
class WindowProgress:
    """A snapshot of training progress."""

    time: float  # of time.perf_counter
    steps: int
    images: int
    evaluated: int  # number of images
    phases: dict[str, float]  # seconds spent in each phase


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
        self._first_step_end: float | None = None
        self._first: WindowProgress | None = None
        self._last: WindowProgress | None = None
        self._epoch_starts: list[WindowProgress] = []
        self._started_epochs = 0  # since the first step
        self._just_completed_epoch = False  # between the last two snapshots; of a known size

    def on_step_end(self, total_steps: int) -> None:
        """Take a snapshot after a step if one is due."""
        if self.is_over:  # work may be counted in later steps, which makes them slow
            return
        now = time.perf_counter()
        if self._first_step_end is None:
            self._first_step_end = now
        if self._first is None:
            if self._is_warm(total_steps, now - self._first_step_end):
                self._first = self._read_progress()
        elif self._is_snapshot_due(now):
            epochs = self._count_known_epochs()
            self._last = self._read_progress()
            self._just_completed_epoch = self._count_known_epochs() > epochs

    def on_epoch_start(self) -> None:
        """Take a snapshot at the start of an epoch."""
        if self._first_step_end is not None:
            self._started_epochs += 1
        if self._first is not None and not self.is_over:
            self._epoch_starts.append(self._read_progress())

    @property
    def is_over(self) -> bool:
        """Return whether enough has been measured.

        A window for epochs of a known size ends after the requested seconds, with the step that
        completes an epoch, or earlier if the epoch takes far too long. Any other window ends after
        the requested steps or seconds; if exactly one epoch has started, it waits a while longer
        for the next to start.
        """
        if self._first is None or self._last is None:
            return False
        elapsed = self._last.time - self._first.time
        if self.known_epoch:
            if elapsed >= _MAX_EPOCH_RATIO * max(self.seconds, self.known_epoch.seconds):
                return True
            return elapsed >= self.seconds and self._just_completed_epoch
        if self._last.steps - self._first.steps >= self.steps:
            return True
        awaits_epoch_end = len(self._epoch_starts) == 1
        return elapsed >= self.seconds * (_MAX_EPOCH_WAIT if awaits_epoch_end else 1.0)

    def interval(self) -> tuple[WindowProgress, WindowProgress, int] | None:
        """Return the first and last snapshot to use, and the number of whole epochs between them.

        The number is 0 for part of an epoch. Return None before the second snapshot.
        """
        if len(self._epoch_starts) > 1 and not self.known_epoch:
            return self._epoch_starts[0], self._epoch_starts[-1], len(self._epoch_starts) - 1
        if self._first is None or self._last is None:
            return None
        return self._first, self._last, self._count_known_epochs()

    def _is_warm(self, total_steps: int, seconds: float) -> bool:
        return (
            total_steps >= self.warm_up_steps
            and seconds >= self.warm_up_seconds
            and self._started_epochs >= self.warm_up_epochs
        )

    def _is_snapshot_due(self, now: float) -> bool:
        if self._last is None or self.known_epoch:
            return True
        return now - self._last.time >= _SNAPSHOT_SECONDS

    def _count_known_epochs(self) -> int:
        """Return how many epochs of the known size have been measured; 0 if it is not known."""
        if not self.known_epoch or not self._first or not self._last:
            return 0
        return (self._last.images - self._first.images) // self.known_epoch.images
