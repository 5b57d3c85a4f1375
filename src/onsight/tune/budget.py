"""What choosing and fitting may spend of a time budget, before training."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onsight.deadline import Deadline

_CLOSING_FRACTION = 0.9  # of the seconds that starting took: a measure of this machine's speed now
_MIN_CLOSING_SECONDS = 1.5
_TRIAL_FRACTION = 0.1  # of the budget, for the plan and everything else that is only tried out


class Budget:
    """The seconds of a deadline, as of the last look at the clock, so that all ranks decide alike.

    agree: returns the first rank's value on every rank.
    """

    def __init__(self, deadline: Deadline, agree: Callable[[float], float] = float) -> None:
        self.deadline = deadline
        self._agree = agree
        self.now = agree(deadline.elapsed())
        self.closing_seconds = max(_MIN_CLOSING_SECONDS, _CLOSING_FRACTION * self.now)
        deadline.reserve("closing", self.closing_seconds)
        self.tried_seconds = 0.0

    @property
    def seconds(self) -> float:
        """The whole budget."""
        return self.deadline.seconds

    def look(self) -> None:
        """Read the clock; every rank gets the first rank's reading."""
        self.now = self._agree(self.deadline.elapsed())

    def peek(self) -> None:
        """Read the clock of this process alone, where no other rank is at the same point."""
        self.now = self.deadline.elapsed()

    @property
    def left_seconds(self) -> float:
        """Seconds left for training, without those for evaluating, saving and reporting."""
        return self.seconds - self.deadline.reserved() - self.now

    @property
    def trial_seconds(self) -> float:
        """Seconds that plan and trials may still take: a tenth of the budget in all."""
        return max(0.0, _TRIAL_FRACTION * self.seconds - self.tried_seconds)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Count the time of the block as that of a trial."""
        begun = self.deadline.elapsed()
        yield
        self.tried_seconds += self.deadline.elapsed() - begun
