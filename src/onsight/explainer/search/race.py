"""A race of changes: the hopeless end early, the best are combined, the winner is proven."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic

from onsight.explainer.interleave import FEWEST_ROUNDS, Rounds
from onsight.explainer.search.gain import BETTER, GAIN
from onsight.explainer.search.tried import Bench, C, Trial, Tried, Untried
from onsight.report.console import Reporter
from onsight.words import ratio_words

_FIRST_UNTIL, _COMBINED_UNTIL = 0.55, 0.8  # of the time, for single changes and combinations
_HOPELESS = 0.9  # times the speed as it is: not measured again
_STALLED = 0.6  # times its usual speed: the machine is to blame
_LEADERS = 4  # single changes that are measured in several rounds
_TOLD_APART = 1.15  # times as fast, or as slow: no further round is needed to choose
_MOST_ROUNDS, _NARROW = 8, 1.15  # of the winner, until its interval's ends are that close


@dataclass
class Contender(Generic[C]):
    """Changes, their trial, and the rounds beside the unchanged training."""

    changes: tuple[C, ...]
    trial: Trial
    rounds: Rounds = field(default_factory=Rounds)
    problem: str = ""
    base: float = 1.0  # the ratio of what it was measured against

    @property
    def groups(self) -> set[str]:
        """What it changes."""
        return {one.group for one in self.changes}

    @property
    def ratio(self) -> float:
        """Times the speed as it is, by the rounds so far; 0 if it could not be measured."""
        return 0.0 if self.problem else self.base * self.rounds.interval.ratio

    def tried(self) -> Tried[C]:
        """The result as it is now."""
        if self.problem:
            return Tried(self.changes, problem=self.problem)
        rates = self.rounds.changed
        return Tried(
            self.changes,
            sum(rates) / len(rates),
            self.rounds.interval,
            self.trial.losses(),
            notes=self.trial.notes(),
        )


@dataclass(frozen=True)
class Found(Generic[C]):
    """What a search found. rates: of the unchanged training; left_out: for want of time."""

    tried: list[Tried[C]]
    best: Tried[C] | None
    rates: list[float]
    left_out: list[C]


class Race(Generic[C]):
    """One search. plain: the unchanged training; window_seconds: of one measurement."""

    def __init__(
        self,
        bench: Bench[C],
        plain: Trial,
        seconds: float,
        window_seconds: float,
        reporter: Reporter,
    ) -> None:
        self.bench, self.plain, self.reporter = bench, plain, reporter
        self.window_seconds = window_seconds
        self.begun, self.seconds = time.monotonic(), seconds
        self.rates: list[float] = []

    def run(self, changes: list[C]) -> Found[C]:
        """Try the changes, in this order while there is time, and combine the best of them."""
        singles, left_out = self._singles(changes)
        self._settle_leaders(singles)
        best = self._combined(singles)
        tried = [one.tried() for one in singles]
        return Found(tried, self._proven(best) if best else None, self.rates, left_out)

    def _singles(self, changes: list[C]) -> tuple[list[Contender[C]], list[C]]:
        """Each change in one round; those for which there is no time."""
        found: list[Contender[C]] = []
        longest = 0.0
        for number, change in enumerate(changes):
            now = time.monotonic()
            if found and now + longest / 2 > self._moment(_FIRST_UNTIL):
                return found, changes[number:]
            found.append(self._first_round((change,), self._plain_rate))
            longest = max(longest, time.monotonic() - now)
            self._say(found[-1])
            self._close_slowest(found)
        return found, []

    def _first_round(self, changes: tuple[C, ...], base: Callable[[], float]) -> Contender[C]:
        one = Contender(changes, self.bench.open(changes))
        self._round(one, base)
        usual = sorted(self.rates)[len(self.rates) // 2]
        if not one.problem and one.ratio < _HOPELESS and self.rates[-1] < _STALLED * usual:
            one.rounds = Rounds()  # the machine was busy for a moment
            self._round(one, base)
        return one

    def _settle_leaders(self, singles: list[Contender[C]]) -> None:
        """Measure the best again, until it is clear by how much they are faster."""
        ranked = sorted(singles, key=lambda one: -one.ratio)
        leaders = [one for one in ranked if one.ratio >= GAIN][:_LEADERS]
        for number in range(1, FEWEST_ROUNDS):
            for one in leaders:
                if len(one.rounds.plain) == number and self._has_time(_COMBINED_UNTIL):
                    self._round(one, self._plain_rate)

    def _combined(self, singles: list[Contender[C]]) -> Contender[C] | None:
        """The fastest, with each next change that adds to it: first those that gained alone.

        What gained nothing alone may do so now, where the time goes elsewhere.
        """
        faster = sorted((one for one in singles if one.ratio >= GAIN), key=lambda one: -one.ratio)
        if not faster:
            return None
        best, seen = faster[0], set[C]()
        queue = [one.changes[0] for one in faster[1:]]
        while self._has_time(_COMBINED_UNTIL):
            queue = queue or self.bench.worth(best.trial)
            queue = [one for one in queue if one not in seen and one.group not in best.groups]
            if not queue:
                break
            change, *queue = queue
            seen.add(change)
            both = self._both(best, change)
            if both.ratio >= BETTER * best.ratio:
                best = both
            else:
                both.trial.close()
        return best

    def _both(self, best: Contender[C], change: C) -> Contender[C]:
        """Both together, measured beside the best so far."""

        def best_rate() -> float:
            return best.trial.measure(self.window_seconds)

        both = self._first_round((*best.changes, change), best_rate)
        both.base = best.ratio
        while not both.problem and len(both.rounds.plain) < FEWEST_ROUNDS:
            against = both.rounds.interval.ratio
            is_clear = not 1 / _TOLD_APART < against < _TOLD_APART
            if is_clear or not self._has_time(_COMBINED_UNTIL):
                break
            self._round(both, best_rate)
        self._say(both)
        return both

    def _proven(self, best: Contender[C]) -> Tried[C] | None:
        """The winner beside the unchanged training, in rounds of their own: it was also lucky."""
        again = Contender(best.changes, best.trial)
        while len(again.rounds.plain) < _MOST_ROUNDS and not again.problem:
            if len(again.rounds.plain) >= FEWEST_ROUNDS:
                interval = again.rounds.interval
                if interval.high < _NARROW * interval.low or not self._has_time(1.0):
                    break
            self._round(again, self._plain_rate)
        found = again.tried()
        if not found.interval:
            return None
        self.reporter.say(f"beside the unchanged one, {found.name}: {found.interval}")
        return found

    def _round(self, one: Contender[C], base: Callable[[], float]) -> None:
        try:
            one.rounds.add(base, lambda: one.trial.measure(self.window_seconds))
        except Untried as error:
            one.problem = str(error)
            one.trial.close()

    def _plain_rate(self) -> float:
        self.rates.append(self.plain.measure(self.window_seconds))
        return self.rates[-1]

    def _close_slowest(self, found: list[Contender[C]]) -> None:
        """Keep only those in memory that will be measured again."""
        ranked = sorted(found, key=lambda one: -one.ratio)
        for place, one in enumerate(ranked):
            if place >= _LEADERS or one.ratio < GAIN:
                one.trial.close()

    def _say(self, one: Contender[C]) -> None:
        name = " + ".join(change.label for change in one.changes)
        self.reporter.say(f"what if {name}: {one.problem or ratio_words(one.ratio)}")

    def _moment(self, share: float) -> float:
        return self.begun + share * self.seconds

    def _has_time(self, share: float) -> bool:
        return time.monotonic() < self._moment(share)
