"""Who wins at a batch size, whether the lead exceeds the noise, and the main reason."""

from dataclasses import dataclass

from onsight.explainer.compare.fit import Fit, crossover
from onsight.explainer.compare.measure import Comparison
from onsight.explainer.compare.rounds import Cell

LEAST_LEAD = 1.02  # a smaller one is useless, however certain
_CLOSE = 0.25  # if a line misses a step by a larger share of it, its crossings mean nothing


@dataclass(frozen=True)
class PerImageResults:
    """The outcome at one batch size.

    winners: the fastest candidate and those level with it, by name; rival: whom they beat
    (the first candidate, or else the best of those behind), "" if nobody; ratio: the fastest's
    speed relative to the rival's; cause: "fixed" or "image", the cost that makes most of the
    difference, "" if the fits cannot tell.
    """

    batch_size: int
    winners: tuple[str, ...]
    rival: str = ""
    ratio: float = 1.0
    cause: str = ""


@dataclass(frozen=True)
class Crossover:
    """From this batch size on, one candidate is faster than another."""

    batch_size: int
    slower: str
    faster: str


def outcomes(comparison: Comparison) -> list[PerImageResults]:
    """One for each batch size at which anything could be timed."""
    found = [_outcome(comparison, size) for size in comparison.batch_sizes]
    return [one for one in found if one.winners]


def crossovers(comparison: Comparison) -> list[Crossover]:
    """Where the first candidate's line crosses another's, within the sizes timed for both.

    Only those that the measured steps on both sides confirm.
    """
    first, *others = (candidate.name for candidate in comparison.candidates)
    pairs = [pair for other in others for pair in ((first, other), (other, first))]
    found = (_crossover(comparison, slower, faster) for slower, faster in pairs)
    return [one for one in found if one]


def _outcome(comparison: Comparison, size: int) -> PerImageResults:
    timed = [cell for cell in comparison.row(size) if not cell.problem]
    if not timed:
        return PerImageResults(size, ())
    ranked = sorted(timed, key=lambda cell: cell.step_seconds)
    fastest = ranked[0]
    winners = tuple(cell.candidate.name for cell in ranked if not _beats(fastest, cell))
    behind = [cell for cell in timed if _beats(fastest, cell)]
    if not behind:
        return PerImageResults(size, winners)
    first = timed[0]
    rival = first if first in behind else min(behind, key=lambda cell: cell.step_seconds)
    ratio = rival.step_seconds / fastest.step_seconds
    fits = comparison.fits[winners[0]], comparison.fits[rival.candidate.name]
    return PerImageResults(size, winners, rival.candidate.name, ratio, _cause(*fits, size))


def _beats(fast: Cell, slow: Cell) -> bool:
    """Whether one was faster in every round timed for both, and by 2% overall."""
    pairs = zip(fast.rounds, slow.rounds, strict=False)
    every_round = all(mine < other for mine, other in pairs)
    return every_round and slow.step_seconds >= LEAST_LEAD * fast.step_seconds


def _cause(winner: Fit | None, rival: Fit | None, size: int) -> str:
    if winner is None or rival is None:
        return ""
    fixed = rival.fixed_seconds - winner.fixed_seconds
    images = size * (rival.image_seconds - winner.image_seconds)
    if fixed + images <= 0:  # the lines contradict the measurement
        return ""
    return "fixed" if fixed >= images else "image"


def _crossover(comparison: Comparison, slower: str, faster: str) -> Crossover | None:
    lines = comparison.fits[slower], comparison.fits[faster]
    pairs = [_pair(comparison, size, slower, faster) for size in comparison.batch_sizes]
    timed = [(one, other) for one, other in pairs if not one.problem and not other.problem]
    if lines[0] is None or lines[1] is None or not timed:
        return None
    if max(lines[0].miss, lines[1].miss) > _CLOSE:
        return None
    size = crossover(lines[0], lines[1], timed[0][0].batch_size, timed[-1][0].batch_size)
    if size is None or not _beats(*timed[0]) or not _beats(*timed[-1][::-1]):
        return None
    against = [
        _beats(one, other) if one.batch_size >= size else _beats(other, one) for one, other in timed
    ]
    return None if any(against) else Crossover(size, slower, faster)


def _pair(comparison: Comparison, size: int, *names: str) -> tuple[Cell, Cell]:
    cells = {cell.candidate.name: cell for cell in comparison.row(size)}
    return cells[names[0]], cells[names[1]]
