"""Successive halving: short trials of a few candidates, longer ones of those still in question."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onsight.errors import ModelError
from onsight.evaluation.metrics import proportion_with_interval
from onsight.text import fixed_percent
from onsight.tune.auto.candidates import Candidate
from onsight.tune.auto.outlook import Outlook, Task, best_of, is_clear
from onsight.tune.auto.trials import Tried

_LEAST_SECONDS = 1.0  # of a trial in the second round: a shorter one tells nothing new


@dataclass(frozen=True)
class Race:
    """The trials of all candidates, those that usually win first, and what they had to do."""

    trials: Sequence[tuple[Candidate, Tried]]
    task: Task

    @property
    def outlooks(self) -> list[Outlook]:
        """What to expect of each candidate that there is time for."""
        return self.outlooks_in(self.task)

    def outlooks_in(self, task: Task) -> list[Outlook]:
        """The same for another task."""
        found = [candidate.outlook(tried, task) for candidate, tried in self.trials]
        return [one for one in found if one]

    @property
    def evidence(self) -> str:
        """What every trial showed, in words."""
        return "tried: " + ", ".join(_shown(candidate, tried) for candidate, tried in self.trials)


def run_race(
    first: list[Candidate],
    second: list[Candidate],
    seconds: float,
    task_of: Callable[[Sequence[tuple[Candidate, Tried]]], Task],
) -> Race:
    """Try the first candidates in half of the seconds; in the rest, those still in question.

    first: those that usually win first. second: larger relatives of a pretrained one, tried if it
    is still in question then; one that cannot be made here is passed over. task_of: the task, for
    which the first trials tell how long training takes.
    """
    deadline = time.monotonic() + seconds
    each = seconds / 2 / len(first)
    trials = [(candidate, candidate.attempt(each)) for candidate in first]
    race = Race(trials, task_of(trials))
    finalists = _in_question(race)
    if any(candidate.is_pretrained for candidate in finalists):
        finalists = _after_pretrained(finalists, second)
    each = (deadline - time.monotonic()) / max(1, len(finalists))
    if len(finalists) < 2 or each < _LEAST_SECONDS:
        return race
    tried = dict(trials)
    for candidate in finalists:
        try:
            tried[candidate] = candidate.attempt(each)
        except ModelError:
            if candidate in first:
                raise
    order = _after_pretrained(first, second)
    return Race([(one, tried[one]) for one in order if one in tried], race.task)


def _in_question(race: Race) -> list[Candidate]:
    """The candidates that no other is clearly ahead of."""
    outlooks = {one: one.outlook(tried, race.task) for one, tried in race.trials}
    known = {candidate: outlook for candidate, outlook in outlooks.items() if outlook}
    if not known:
        return []
    best = min(known.values(), key=lambda one: one.error)
    return [candidate for candidate, outlook in known.items() if not is_clear(best, outlook)]


def _after_pretrained(candidates: list[Candidate], larger: list[Candidate]) -> list[Candidate]:
    """Cheap backbones before larger ones, and both where the pretrained candidate stood."""
    ordered: list[Candidate] = []
    for one in candidates:
        ordered += [one, *larger] if one.is_pretrained else [one]
    return ordered


def more_time(race: Race, times: int) -> list[str]:
    """What that many times the time would probably bring, in words; empty if it is not much."""
    now, later = best_of(race.outlooks), best_of(race.outlooks_in(race.task.with_time(times)))
    return [f"with {times} times the time, {later}"] if is_clear(later, now) else []


def _shown(candidate: Candidate, tried: Tried) -> str:
    found = proportion_with_interval("right", tried.right, tried.judged)
    low, high = found["right_low"] or 0.0, found["right_high"] or 0.0
    how = f"{tried.trained:,} images by a head on {candidate.name}"
    if not candidate.is_pretrained:
        how = f"{tried.seen:,} images from scratch"
    return (
        f"{fixed_percent(found['right'])} ({100 * low:.0f} to {100 * high:.0f}, "
        f"n = {tried.judged:,}) after {how}"
    )
