"""What choosing and fitting may spend of a time budget, before training."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onsight.deadline import Deadline

_CLOSING_FRACTION = 0.9  # of the seconds that starting took, which shows how fast the machine is
_MIN_CLOSING_SECONDS = 1.5
_TRIAL_FRACTION = 0.1  # of the budget, for all trials


class Budget:
    """The seconds of a deadline, by a reading of the clock that all ranks share.

    Args:
        deadline: The deadline. Time is reserved for closing the run.
        agree: Returns the first rank's value on every rank.
        process_seconds: The age of this process: less than the time elapsed if the run was
            restarted.
    """

    def __init__(
        self,
        deadline: Deadline,
        agree: Callable[[float], float] = float,
        process_seconds: float = math.inf,
    ) -> None:
        self.deadline = deadline
        self._agree = agree
        self.now = agree(deadline.elapsed())
        starting_seconds = agree(min(self.now, process_seconds))
        self.closing_seconds = max(_MIN_CLOSING_SECONDS, _CLOSING_FRACTION * starting_seconds)
        deadline.reserve("closing", self.closing_seconds)
        self.tried_seconds = 0.0

    @property
    def seconds(self) -> float:
        """The whole budget."""
        return self.deadline.seconds

    def read_clock(self) -> None:
        """Read the clock of the first rank, on every rank."""
        self.now = self._agree(self.deadline.elapsed())

    def read_own_clock(self) -> None:
        """Read the clock of this process, where no other rank is at the same point."""
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
