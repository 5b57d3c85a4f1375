"""When a run must have ended, and the time set aside for what follows training."""

import math
from collections.abc import Callable

_MOST_EXTENDED = 1.5  # of the budget, for a run that would otherwise end without a model


class Deadline:
    """The moment by which a run must have ended; infinitely far away without a budget.

    Args:
        seconds: The budget.
        elapsed: Returns the seconds since the run began.
        keeps_running: Whether the clock ran on while an interrupted run was down.

    Attributes:
        seconds: The budget, with what it was extended by.
        budget_seconds: The budget.
        is_suspended: Whether the budget is ignored, because another run's decisions are repeated.
        essential_seconds: Of what is left, only for work that cannot be left out.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        elapsed: Callable[[], float] = lambda: 0.0,
        keeps_running: bool = False,
    ) -> None:
        self.seconds = self.budget_seconds = seconds
        self.is_suspended = False
        self.essential_seconds = 0.0
        self._elapsed = elapsed
        self._keeps_running = keeps_running
        self._earlier_seconds = 0.0  # of the run that is resumed
        self._reserved: dict[str, float] = {}

    @property
    def whole(self) -> "Deadline":
        """The deadline of the run."""
        return self

    @property
    def is_set(self) -> bool:
        """Whether there is a budget to keep."""
        return self.seconds < math.inf and not self.is_suspended

    def elapsed(self) -> float:
        """Return the seconds used so far, with those of the run that is resumed."""
        return self._earlier_seconds + self._elapsed()

    def remaining(self) -> float:
        """Return the seconds left for training, negative once there are none."""
        return self.seconds - self.reserved() - self.elapsed() if self.is_set else math.inf

    def remaining_for_extras(self) -> float:
        """Return the seconds left for what can be left out."""
        return self.remaining() - self.essential_seconds

    def reserved(self) -> float:
        """Return the seconds set aside for what follows training."""
        return sum(self._reserved.values())

    def reserve(self, purpose: str, seconds: float) -> None:
        """Set time aside, in place of what was set aside for this purpose before."""
        self._reserved[purpose] = seconds

    def release(self, purpose: str) -> float:
        """Give back the time set aside for a purpose, whose turn has come; return the seconds."""
        return self._reserved.pop(purpose, 0.0)

    def extend(self, seconds: float) -> bool:
        """Move the deadline if the run is then at most half longer than its budget.

        Returns:
            Whether it was moved.
        """
        if self.seconds + seconds > _MOST_EXTENDED * self.budget_seconds:
            return False
        self.seconds += seconds
        return True

    def count_earlier(self, seconds: float) -> None:
        """Count the seconds that the interrupted run had used in all when it saved something."""
        if not self._keeps_running:
            self._earlier_seconds = max(self._earlier_seconds, seconds)

    def part(self, fraction: float, essential_fraction: float = 0.0) -> "DeadlinePart":
        """Return the deadline of one of several trainings: a fraction of what is left, from now on.

        What is set aside for after all trainings stays so.

        Args:
            fraction: Of what is left.
            essential_fraction: Of what is left, in addition, but only for work that cannot be left
                out.
        """
        return DeadlinePart(fraction, essential_fraction, self)


class DeadlinePart(Deadline):
    """The deadline of one of a run's trainings, whose time begins now."""

    def __init__(self, fraction: float, essential_fraction: float, whole: Deadline) -> None:
        begun, left_seconds = whole.elapsed(), whole.remaining()
        super().__init__(
            (fraction + essential_fraction) * left_seconds, lambda: whole.elapsed() - begun
        )
        if whole.is_set:  # of what is left, the whole keeps some for essential work already
            kept_seconds = (fraction + essential_fraction) * whole.essential_seconds
            self.essential_seconds = kept_seconds + essential_fraction * left_seconds
        self._whole = whole

    @property
    def whole(self) -> Deadline:
        """The deadline of the run."""
        return self._whole.whole

    def extend(self, seconds: float) -> bool:
        """Move the deadline, and that of the run, if that is possible; return whether it is."""
        if not self._whole.extend(seconds):
            return False
        self.seconds += seconds
        return True

    def count_earlier(self, seconds: float) -> None:
        """Count the seconds that the interrupted run had used in all when it saved something."""
        self._whole.count_earlier(seconds)


def read_budget(text: str) -> float:
    """Return the seconds of a budget such as 90s, 5m or 2h; infinity for none."""
    if not text:
        return math.inf
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
