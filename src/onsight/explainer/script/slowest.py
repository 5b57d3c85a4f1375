"""The slowest of several ranks: by how much, and in which phase; the others wait for it."""

import statistics
from dataclasses import dataclass

from onsight.explainer.script.trace import RankFacts, Trace
from onsight.explainer.tracing.clock import PHASES
from onsight.explainer.what_ifs.what_if import Cause
from onsight.words import percent, step_times

_LEAST = 0.1  # of a step, by which a rank is slower, to be named as the cause
_MUCH = 0.3  # of a step, spent in communication, to be named as the cause


@dataclass(frozen=True)
class Slowest:
    """A rank that works longer than the others in each step.

    seconds: longer than the median of the others; phase: in which most of that is spent, and
    phase_seconds of it; waiting_seconds: of the others in communication, a step; share: of a step.
    """

    rank: int
    seconds: float
    phase: str
    phase_seconds: float
    waiting_seconds: float
    share: float


def slowest(ranks: list[RankFacts]) -> Slowest | None:
    """The rank that works longest; None if that is nearly as long as the others do."""
    if len(ranks) < 2:
        return None
    last = max(ranks, key=_work)
    others = [one for one in ranks if one is not last]
    phases = [name for name in PHASES if name != "communication"]
    excess = {
        name: last.per_step(name) - statistics.median(one.per_step(name) for one in others)
        for name in phases
    }
    phase = max(phases, key=lambda name: excess[name])
    seconds = _work(last) - statistics.median(map(_work, others))
    share = seconds / last.step_seconds
    if share < _LEAST:
        return None
    waiting = statistics.median(one.per_step("communication") for one in others)
    inside = min(seconds, excess[phase])
    return Slowest(last.rank, seconds, phase, inside, waiting, share)


def cause_of_ranks(trace: Trace) -> Cause | None:
    """What holds several ranks back, if it is that they wait for each other."""
    late = slowest(trace.ranks)
    if late:
        longer, inside, waiting = step_times(late.seconds, late.phase_seconds, late.waiting_seconds)
        return Cause(
            "slow-rank",
            f"rank {late.rank} is the slowest: it works {longer} a step longer than the others, "
            f"{inside} of it in {PHASES[late.phase]}, and they wait for it ({waiting} a step in "
            "communication)",
        )
    share = trace.share("communication")
    if trace.world > 1 and share > _MUCH:
        return Cause(
            "communication",
            f"{percent(share)} of the time is communication between {trace.world} ranks, none of "
            "which is slower than the others",
        )
    return None


def _work(one: RankFacts) -> float:
    """Seconds of a step that are not communication."""
    return one.step_seconds - one.per_step("communication")
