"""Times candidates in interleaved rounds; of those as fast as the fastest, the simplest wins."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Options = TypeVar("Options")

_ROUNDS = 9
_FEWEST_ROUNDS = 3  # before a difference may count as noise
_HOPELESS = (2.0, 1.5, 1.3)  # times the fastest after 1, 2, more rounds: not timed again
NEGLIGIBLE = 1.03  # times the fastest: counts as equal


@dataclass
class Candidate(Generic[Options]):
    """Options to time; `visit` measures the seconds of a step with them, now."""

    options: Options
    visit: Callable[[], float]
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Seconds per step, the median over the rounds."""
        return statistics.median(self.seconds)


def pick_fastest(
    candidates: Sequence[Candidate[Options]],
    most_seconds: float,
    hard_seconds: float = math.inf,
    lost: Callable[[Options], object] = lambda options: None,
) -> Candidate[Options]:
    """The first candidate, simplest first, that is as fast as the fastest within noise.

    Every candidate that still has a chance is visited once per round, so that noise affects all
    alike. Those not yet timed when the time is up do not take part. hard_seconds: a visit is not
    begun if it would end later, as long as it takes no longer than the longest so far. lost: told
    of the options that are not timed again.
    """
    begun = time.perf_counter()
    longest = 0.0
    hopeful = list(candidates)
    for number in range(_ROUNDS):
        for candidate in hopeful:
            # The first round may take twice the time: what is never timed is never chosen.
            limit = most_seconds * (1 if candidates[-1].seconds else 2)
            now = time.perf_counter() - begun
            is_late = now > limit or now + longest > hard_seconds
            if is_late and candidates[0].seconds:
                return choose(candidates)
            candidate.seconds.append(candidate.visit())
            longest = max(longest, time.perf_counter() - begun - now)
        timed = [candidate for candidate in hopeful if candidate.seconds]
        best = min(candidate.median for candidate in timed)
        slowest = best * _HOPELESS[min(number, len(_HOPELESS) - 1)]
        hopeful = [candidate for candidate in timed if candidate.median <= slowest]
        for candidate in timed:
            if candidate not in hopeful:
                lost(candidate.options)
        if len(hopeful) == 1:
            break
    return choose(candidates)


def choose(candidates: Sequence[Candidate[Options]]) -> Candidate[Options]:
    """The first candidate whose lag behind the fastest is negligible or no more than noise."""
    timed = [candidate for candidate in candidates if candidate.seconds]
    fastest = min(timed, key=lambda candidate: candidate.median)
    return next(candidate for candidate in timed if _keeps_up(candidate, fastest))


def _keeps_up(candidate: Candidate[Options], fastest: Candidate[Options]) -> bool:
    """Whether the rounds that both took part in show no difference beyond noise."""
    ratios = sorted(
        mine / best for mine, best in zip(candidate.seconds, fastest.seconds, strict=False)
    )
    if candidate is fastest or statistics.median(ratios) <= NEGLIGIBLE:
        return True
    # A simple sign test: a slower one loses at least three in four of three or more rounds.
    lost = sum(ratio > 1 for ratio in ratios)
    return len(ratios) >= _FEWEST_ROUNDS and lost < 0.75 * len(ratios)
