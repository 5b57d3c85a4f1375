"""A time budget: how much of it is spent, and when training must end for the run to be in time."""

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onsight.step.calibrate import DETECTOR_IMAGES, TEMPERATURE_IMAGES

_CLOSING_SHARE = 0.9  # of the seconds that starting took: a measure of this machine's speed now
_LEAST_CLOSING_SECONDS = 1.5
_SAVES_AT_THE_END = 5  # in sizes of a first checkpoint: weights twice, an optimizer's state thrice
_TRIAL_SHARE = 0.1  # of the budget, for the plan and everything else that is only tried out
_FEWEST_VALIDATED = 8
_TELLING_SECONDS = 0.1  # of an evaluation, to judge the speed of longer ones by
_VALIDATION_SHARE = 0.1  # of the time for training, at most, for one validation


class Budget:
    """The seconds that a run may take, to its last line of output.

    spent: returns the seconds so far; agree: returns the first rank's value on every rank;
    runs_on: whether those of a run that was interrupted are among them. All figures are as of the
    last `look` at the clock, so that all ranks decide alike.
    """

    def __init__(
        self,
        seconds: float,
        spent: Callable[[], float],
        agree: Callable[[float], float] = float,
        runs_on: bool = False,
    ) -> None:
        self.runs_on = runs_on
        self.seconds = seconds
        self._clock = spent
        self._agree = agree
        self.now = agree(spent())
        self.begun = self.now
        self.closing_seconds = max(_LEAST_CLOSING_SECONDS, _CLOSING_SHARE * self.now)
        self.tried_seconds = 0.0
        self.tested = self.validated = self.calibrated = self.compared = 0
        self.image_seconds = 0.0
        self.kept_seconds = 0.0
        self.reached = 0.0
        self.whole: Budget | None = None
        self.last_steps: deque[float] = deque([0.0], maxlen=2)

    def look(self) -> None:
        """Read the clock; every rank gets the first rank's reading."""
        self.now = self._agree(self._clock())

    def peek(self) -> None:
        """Read the clock of this process alone, where no other rank is at the same point."""
        self.now = self._clock()

    def spare_seconds(self, most: float) -> float:
        """Seconds, so many at most, for what may be left out of a run's end; of this process."""
        self.peek()
        return min(most, self.seconds - self.closing_seconds - self.now)

    @property
    def left_seconds(self) -> float:
        """Seconds left for training, without those for evaluating, saving and reporting."""
        return self.validation_seconds - self.validated * self.image_seconds

    @property
    def validation_seconds(self) -> float:
        """Seconds left for training and validation together."""
        evaluated = self.tested + self.calibrated + 2 * self.compared
        after = self.closing_seconds + self.kept_seconds + evaluated * self.image_seconds
        return self.seconds - after - self.now

    @property
    def share(self) -> float:
        """The share of the time for training that has passed, 0 to 1."""
        trained = self.now - self.begun
        share = min(1.0, trained / max(1e-9, trained + self.left_seconds))
        self.reached = max(self.reached, share)  # a better estimate must not turn time back
        return self.reached

    @property
    def step_seconds(self) -> float:
        """Seconds that the next step is expected to take: the longer of the last two."""
        return max(self.last_steps)

    def is_over(self, steps: int = 1) -> bool:
        """Whether that many more steps would take longer than there is time."""
        return self.share >= 1 or steps * self.step_seconds > self.left_seconds

    def reserve(self, tested: int, validation: int, image_seconds: float) -> None:
        """Keep the time to evaluate these images after training.

        Of the validation part, only as many images as take a tenth of the time for training, and
        none if those are too few to tell anything; the same once more, for the temperature, and at
        most twice more, for what tells unlike images.
        """
        self.tested, self.validated, self.calibrated = tested, 0, 0
        self.image_seconds = image_seconds
        most = _VALIDATION_SHARE * max(0.0, self.left_seconds)
        self.validated = validation
        if validation * image_seconds > most:
            fitting = int(most / image_seconds)
            self.validated = fitting if fitting >= _FEWEST_VALIDATED else 0
        self.calibrated = min(TEMPERATURE_IMAGES, self.validated)
        self.compared = min(DETECTOR_IMAGES, self.validated)

    def keep_validations(self, count: int) -> None:
        """Keep the time for so many more validations after training, if a tenth of it is enough."""
        seconds = count * self.validated * self.image_seconds
        self.look()
        self.kept_seconds = seconds if seconds <= _VALIDATION_SHARE * self.left_seconds else 0.0

    def give_back_validations(self) -> bool:
        """Give the time that was kept for validations to them; whether there is any."""
        kept, self.kept_seconds = self.kept_seconds, 0.0
        return kept > 0

    def begin(self, step_seconds: float) -> None:
        """Training begins now, with steps that were timed before."""
        self.look()
        self.begun = self.now
        self.last_steps = deque([step_seconds], maxlen=2)

    def step_done(self) -> None:
        """Take note of how long the step since the last look took."""
        before = self.now
        self.look()
        self.last_steps.append(self.now - before)

    def part(self, share: float, tested: int, validation: int) -> "Budget":
        """A budget of a share of the time left, for one of several trainings, beginning now.

        tested, validation: as for `reserve`.
        """
        self.look()
        part = Budget(self.now + share * self.left_seconds, lambda: self._clock(), self._agree)
        part.closing_seconds = 0.0
        part.whole = self
        part.reserve(tested, validation, self.image_seconds)
        part.begin(self.step_seconds)
        return part

    def resume(self, seconds: float) -> None:
        """Count the seconds that an interrupted run has already used."""
        if self.whole:  # whose clock this one shows
            self.whole.resume(seconds)
        elif not self.runs_on:
            clock = self._clock
            self._clock = lambda: clock() + seconds
        self.look()

    def saved(self, seconds: float) -> None:
        """Keep the time for what is saved at the end, after a first checkpoint took so long."""
        self.closing_seconds += _SAVES_AT_THE_END * seconds

    def judged(self, images: int, seconds: float) -> None:
        """Take note of how many seconds the evaluation of how many images took.

        That of very few is over so soon that it tells what beginning takes, not an image.
        """
        if images:
            each = seconds / images
            is_telling = seconds >= _TELLING_SECONDS
            self.image_seconds = each if is_telling else min(each, self.image_seconds)

    def images_to_calibrate(self) -> int:
        """How many of the first validation images there is time to fit the temperature on now.

        Fewer than were reserved, or none, if images have become slower since then.
        """
        self.look()
        short = max(0.0, -self.validation_seconds)  # what evaluating the others will lack
        if not short:
            return self.calibrated
        return max(0, self.calibrated - math.ceil(short / self.image_seconds))

    def images_to_compare(self) -> int:
        """How many training and validation images each there is time to compare after that."""
        self.calibrated = 0  # that is over
        self.look()
        short = max(0.0, -self.validation_seconds)
        if not short:
            return self.compared
        return max(0, self.compared - math.ceil(short / (2 * self.image_seconds)))

    @property
    def trial_seconds(self) -> float:
        """Seconds that plan and trials may still take: a tenth of the budget in all."""
        return max(0.0, _TRIAL_SHARE * self.seconds - self.tried_seconds)

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Count the time of the block as that of a trial."""
        begun = self._clock()
        yield
        self.tried_seconds += self._clock() - begun


def read_budget(text: str) -> float:
    """Seconds of a budget such as 90s, 5m or 2h; 0 for none."""
    if not text:
        return 0.0
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]
