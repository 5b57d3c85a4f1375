"""A time budget: how much of it is spent, and when training must end for the run to be in time."""

from collections.abc import Callable

_CLOSING_SHARE = 0.5  # of the seconds that starting took: a measure of this machine's speed now
_LEAST_CLOSING_SECONDS = 1.5


class Budget:
    """The seconds that a run may take, to its last line of output.

    spent: returns the seconds so far; pictures: how many are evaluated after training, each in
    picture_seconds as last measured.
    """

    def __init__(self, seconds: float, spent: Callable[[], float]) -> None:
        self.seconds = seconds
        self.spent = spent
        self.closing_seconds = max(_LEAST_CLOSING_SECONDS, _CLOSING_SHARE * spent())
        self.pictures = 0
        self.picture_seconds = 0.0
        self.begun = spent()
        self.reached = 0.0
        self.whole: Budget | None = None

    @property
    def left_seconds(self) -> float:
        """Seconds left for training, without those for evaluating, saving and reporting."""
        after = self.closing_seconds + self.pictures * self.picture_seconds
        return self.seconds - after - self.spent()

    @property
    def share(self) -> float:
        """The share of the time for training that has passed, 0 to 1."""
        trained = self.spent() - self.begun
        share = min(1.0, trained / max(1e-9, trained + self.left_seconds))
        self.reached = max(self.reached, share)  # a better estimate must not turn time back
        return self.reached

    def begin(self, pictures: int, picture_seconds: float) -> None:
        """Training begins now; after it, this many pictures will be evaluated."""
        self.begun = self.spent()
        self.pictures, self.picture_seconds = pictures, picture_seconds

    def part(self, share: float, pictures: int) -> "Budget":
        """A budget of a share of the time left, for one of several trainings, beginning now.

        pictures: how many are evaluated after it.
        """
        part = Budget(self.spent() + share * self.left_seconds, lambda: self.spent())
        part.closing_seconds = 0.0
        part.whole = self
        part.begin(pictures, self.picture_seconds)
        return part

    def resume(self, seconds: float) -> None:
        """Count the seconds that an interrupted run has already used."""
        if self.whole:  # whose clock this one shows
            self.whole.resume(seconds)
            return
        spent = self.spent
        self.spent = lambda: spent() + seconds

    def judged(self, pictures: int, seconds: float) -> None:
        """Take note of how many seconds the evaluation of how many pictures took."""
        if pictures:
            self.picture_seconds = seconds / pictures


def read_budget(text: str) -> float:
    """Seconds of a budget such as 90s, 5m or 2h; 0 for none."""
    if not text:
        return 0.0
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
