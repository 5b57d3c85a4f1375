"""Interleaved timing: every candidate runs in every round, so that noise affects all equally.

How two candidates are compared is decided in one place, `is_faster`.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from onsight_explain.devices import is_out_of_memory
from onsight_explain.paired_timing import RatioInterval, ratio_interval

ROUNDS = 7
OUT_OF_MEMORY = "out of memory"
MIN_LEAD = 1.02  # a smaller lead is useless, however certain
_MIN_ROUNDS = 3  # rounds of cells with slow steps
_WARM_UP_SECONDS = 0.1
_WINDOW_SECONDS = 0.12  # time of a cell per round, but at least one step
_CELL_SECONDS = 3.0  # cells timed for longer need only _MIN_ROUNDS
_MAX_STEP_SECONDS = 5.0


@dataclass(frozen=True)
class DeviceCandidate:
    """A way to compute a run's steps."""

    name: str
    device: torch.device
    threads: int
    precision: str
    tentative: bool = False  # skipped with a warning if it fails


@dataclass
class TimedCell:
    """A candidate at a batch size, and its measurements."""

    candidate: DeviceCandidate
    batch_size: int
    time_steps: Callable[[int], float]  # runs a number of steps and returns their seconds
    steps: int = 1  # steps per round
    rounds: list[float] = field(default_factory=list)  # seconds per step in each round
    problem: str = ""  # why there is no measurement

    @property
    def step_seconds(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.rounds)

    @property
    def images_per_second(self) -> float:
        """Training throughput, by the median."""
        return self.batch_size / self.step_seconds

    @property
    def is_finished(self) -> bool:
        """True if nothing is left to time."""
        spent = sum(self.rounds) * self.steps
        return bool(self.problem) or (len(self.rounds) >= _MIN_ROUNDS and spent > _CELL_SECONDS)


def is_faster(cell: TimedCell, other: TimedCell) -> bool:
    """Return whether a cell was faster in every round timed for both, and by 2% overall."""
    pairs = zip(cell.rounds, other.rounds, strict=False)
    every_round = all(seconds < other_seconds for seconds, other_seconds in pairs)
    return every_round and other.step_seconds >= MIN_LEAD * cell.step_seconds


def speed_ratio(cell: TimedCell, other: TimedCell) -> RatioInterval:
    """Return how many times as fast a cell was as another, from the rounds timed for both."""
    pairs = zip(cell.rounds, other.rounds, strict=False)
    return ratio_interval([other_seconds / seconds for seconds, other_seconds in pairs])


def warm_up(cells: Iterable[TimedCell], advance: Callable[[], None]) -> None:
    """Run each cell briefly and choose its steps per round. Batch sizes must ascend.

    advance is called after each cell. A cell whose step would take too long is not run.
    """
    smaller: dict[DeviceCandidate, tuple[int, float]] = {}
    for cell in cells:
        size, seconds = smaller.get(cell.candidate, (cell.batch_size, 0.0))
        expected = seconds * cell.batch_size / size
        if expected > _MAX_STEP_SECONDS:
            cell.problem = f"not timed: about {expected:.0f} s per step"
        else:
            _measure(cell, _warm_up_cell)
        if not cell.problem:
            smaller[cell.candidate] = cell.batch_size, cell.rounds.pop()
        advance()


def run_rounds(cells: Iterable[TimedCell], advance: Callable[[], None]) -> None:
    """Time every cell once in each round. advance is called after each timing."""
    for _ in range(ROUNDS):
        for cell in cells:
            if not cell.is_finished:
                _measure(cell, _time_round)
            advance()


def _warm_up_cell(cell: TimedCell) -> None:
    """Leave the seconds per step as the only round."""
    # The first step of all loads libraries, and of each size it allocates memory and picks kernels:
    # on a GPU this can take a second where later steps take a millisecond.
    seconds = cell.time_steps(1)
    if seconds < _MAX_STEP_SECONDS:
        steps = 1
        while (seconds := cell.time_steps(steps)) < _WARM_UP_SECONDS:
            steps *= 2
        seconds /= steps
    cell.steps = max(1, round(_WINDOW_SECONDS / seconds))
    cell.rounds = [seconds]


def _time_round(cell: TimedCell) -> None:
    cell.rounds.append(cell.time_steps(cell.steps) / cell.steps)


def _measure(cell: TimedCell, measure: Callable[[TimedCell], None]) -> None:
    """Measure a cell; if it runs out of memory, note that as its problem."""
    try:
        measure(cell)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        cell.problem = OUT_OF_MEMORY
        cell.rounds.clear()
