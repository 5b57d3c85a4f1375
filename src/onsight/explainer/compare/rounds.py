"""Timing in interleaved rounds: every candidate in every round, so that noise affects all alike."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from onsight.explainer.compare.candidates import Candidate
from onsight_explain.devices import is_out_of_memory

ROUNDS = 7
_FEWEST_ROUNDS = 3  # for cells whose steps take long
_WARM_UP_SECONDS = 0.1
_WINDOW_SECONDS = 0.12  # of a cell in a round, but at least one step
_CELL_SECONDS = 3.0  # after this long, the fewest rounds are enough
_LONGEST_STEP_SECONDS = 5.0

OUT_OF_MEMORY = "out of memory"


@dataclass
class Cell:
    """A candidate at a batch size, and its measurements.

    seconds: times so many steps; rounds: seconds per step in each round; problem: why there
    is no measurement, or "".
    """

    candidate: Candidate
    batch_size: int
    seconds: Callable[[int], float]
    steps: int = 1
    rounds: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def step_seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def images_per_second(self) -> float:
        """Images trained per second, by the median."""
        return self.batch_size / self.step_seconds

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to time."""
        spent = sum(self.rounds) * self.steps
        return bool(self.problem) or (len(self.rounds) >= _FEWEST_ROUNDS and spent > _CELL_SECONDS)


def warm_up(cells: Iterable[Cell], tell: Callable[[], None]) -> None:
    """Run each cell for a moment and choose its steps per round. Batch sizes must ascend.

    tell: called after each cell. A cell whose step would take too long is not run.
    """
    smaller: dict[Candidate, tuple[int, float]] = {}
    for cell in cells:
        size, seconds = smaller.get(cell.candidate, (cell.batch_size, 0.0))
        expected = seconds * cell.batch_size / size
        if expected > _LONGEST_STEP_SECONDS:
            cell.problem = f"not timed: about {expected:.0f} s per step"
        else:
            _guard(cell, _warm_up)
        if not cell.problem:
            smaller[cell.candidate] = cell.batch_size, cell.rounds.pop()
        tell()


def run_rounds(cells: Iterable[Cell], tell: Callable[[], None]) -> None:
    """Time every cell once in each round. tell: called after each timing."""
    for _ in range(ROUNDS):
        for cell in cells:
            if not cell.is_done:
                _guard(cell, _time_round)
            tell()


def _warm_up(cell: Cell) -> None:
    """Leave the seconds per step as the only round."""
    seconds = cell.seconds(1)  # the first step allocates memory and chooses kernels
    if seconds < _LONGEST_STEP_SECONDS / 10:
        steps = 1
        while (seconds := cell.seconds(steps)) < _WARM_UP_SECONDS:
            steps *= 2
        seconds /= steps
    cell.steps = max(1, round(_WINDOW_SECONDS / seconds))
    cell.rounds = [seconds]


def _time_round(cell: Cell) -> None:
    cell.rounds.append(cell.seconds(cell.steps) / cell.steps)


def _guard(cell: Cell, measure: Callable[[Cell], None]) -> None:
    """Measure a cell; if it runs out of memory, note that and go on."""
    try:
        measure(cell)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        cell.problem = OUT_OF_MEMORY
        cell.rounds.clear()
