"""A race of changes: the hopeless end early, the best are combined, the winner is proven."""

import statistics
import time
from dataclasses import dataclass, field
from typing import Generic

from onsight.explainer.console import Messages
from onsight.explainer.interleave import FEWEST_ROUNDS, Rounds
from onsight.explainer.search.gain import BETTER, GAIN
from onsight.explainer.search.tried import Bench, C, Trial, Tried, Untried
from onsight.words import ratio_words

_FIRST_UNTIL, _COMBINED_UNTIL = 0.55, 0.8  # of the time, for single changes and combinations
_STALLED = 0.5  # times its usual speed: other work is to blame, and the round is repeated
_RECENT = 3.0  # times as long as it took, for which a rate of the unchanged training is recent
_LEADERS = 4  # single changes that are measured in several rounds
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
        """Times the speed as it is, the median of its rounds; 0 if it could not be measured."""
        return 0.0 if self.problem else self.base * statistics.median(self.rounds.ratios)

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
    """What a search found.

    rates: of the unchanged training; left_out: for want of time.
    """

    tried: list[Tried[C]]
    best: Tried[C] | None
    rates: list[float]
    left_out: list[C]


def _is_stalled(rate: float, usual: list[float]) -> bool:
    return len(usual) >= FEWEST_ROUNDS and rate < _STALLED * statistics.median(usual)


def _is_settled(one: Tried[C]) -> bool:
    return one.interval is not None and one.interval.rounds >= FEWEST_ROUNDS


class Race(Generic[C]):
    """One search. plain: the unchanged training; window_seconds: of one measurement.

    kept_seconds: of all seconds, for what follows if something is faster.
    """

    def __init__(
        self,
        bench: Bench[C],
        plain: Trial,
        seconds: float,
        window_seconds: float,
        messages: Messages,
        kept_seconds: float = 0.0,
    ) -> None:
        self.bench, self.plain, self.messages = bench, plain, messages
        self.window_seconds, self.kept_seconds = window_seconds, kept_seconds
        self.begun, self.seconds = time.monotonic(), seconds
        self.rates: list[float] = []
        self.plain_seconds, self.recent_until = 0.0, 0.0
        self.singles: list[Contender[C]] = []

    def run(self, changes: list[C]) -> Found[C]:
        """Try the changes, in this order while there is time, and combine the best of them."""
        singles, left_out = self._singles(changes)
        self._settle_leaders(singles)
        best = self._combined(singles)
        tried = [one.tried() for one in singles]
        proven = self._proven(best, tried) if best else None
        return Found(tried, proven, self.rates, left_out)

    def _singles(self, changes: list[C]) -> tuple[list[Contender[C]], list[C]]:
        """Each change in one round; those for which there is no time."""
        found, longest = self.singles, 0.0
        for number, change in enumerate(changes):
            now = time.monotonic()
            until = _FIRST_UNTIL if self._has_gain else 1.0  # without one, nothing comes after
            if found and not self._has_time(until, longest / 2):
                return found, changes[number:]
            found.append(Contender((change,), self.bench.open((change,))))
            self._round(found[-1], is_first=True)
            longest = max(longest, time.monotonic() - now)
            self._say(found[-1])
            self._close_slowest(found)
        return found, []

    def _settle_leaders(self, singles: list[Contender[C]]) -> None:
        """Measure the best again, until it is clear by how much they are faster."""
        ranked = sorted(singles, key=lambda one: -one.ratio)
        leaders = [one for one in ranked if one.ratio >= GAIN][:_LEADERS]
        for number in range(1, FEWEST_ROUNDS):
            for one in leaders:
                if len(one.rounds.plain) == number and self._has_time(_COMBINED_UNTIL):
                    self._round(one)

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
        """Both together, measured beside the best so far; a gain must show in several rounds."""
        changes = (*best.changes, change)
        both = Contender(changes, self.bench.open(changes), base=best.ratio)
        while len(both.rounds.plain) < FEWEST_ROUNDS and not both.problem:
            if both.rounds.plain and both.ratio < BETTER * best.ratio:
                break
            self._round(both, best)
        self._say(both)
        return both

    def _proven(self, best: Contender[C], singles: list[Tried[C]]) -> Tried[C] | None:
        """The winner beside the unchanged training, in rounds of its own: it was also lucky.

        A single change that is surer is the winner instead if it gained more, or if the winner's
        own gain was not shown.
        """
        again = Contender(best.changes, best.trial)
        while len(again.rounds.plain) < _MOST_ROUNDS and not again.problem:
            if len(again.rounds.plain) >= FEWEST_ROUNDS:
                interval = again.rounds.interval
                is_over = time.monotonic() > self._moment(1.0) - self.kept_seconds
                if interval.high < _NARROW * interval.low or is_over:
                    break
            self._round(again)
        found = again.tried()
        for one in filter(_is_settled, singles):
            is_shown = found.interval and found.interval.is_shown
            if one.low > found.low and (one.ratio >= found.ratio or not is_shown):
                found = one
        if not found.interval:
            return None
        self.messages.say(f"beside the unchanged one, {found.name}: {found.interval}")
        return found

    def _round(
        self, one: Contender[C], base: Contender[C] | None = None, is_first: bool = False
    ) -> None:
        """Measure it beside the unchanged training or another contender, once more if disturbed.

        is_first: of a single change, for which a recent rate of the unchanged training will do.
        """
        usual = base.rounds.changed if base else self.rates

        def rate_of_base() -> float:
            if is_first and time.monotonic() < self.recent_until:
                return self.rates[-1]
            return base.trial.measure(self.window_seconds) if base else self._plain_rate()

        try:
            for attempt in range(2):
                one.rounds.add(rate_of_base, lambda: one.trial.measure(self.window_seconds))
                plain, changed = one.rounds.plain, one.rounds.changed
                if not _is_stalled(plain[-1], usual) and not _is_stalled(changed[-1], changed):
                    return
                if attempt == 0:
                    plain.pop()
                    changed.pop()
        except Untried as error:
            one.problem = str(error)
            one.trial.close()

    def _plain_rate(self) -> float:
        begun = time.monotonic()
        self.rates.append(self.plain.measure(self.window_seconds))
        self.plain_seconds = time.monotonic() - begun
        self.recent_until = time.monotonic() + _RECENT * self.plain_seconds
        return self.rates[-1]

    def _close_slowest(self, found: list[Contender[C]]) -> None:
        """Keep only those in memory that will be measured again."""
        ranked = sorted(found, key=lambda one: -one.ratio)
        for place, one in enumerate(ranked):
            if place >= _LEADERS or one.ratio < GAIN:
                one.trial.close()

    def _say(self, one: Contender[C]) -> None:
        name = " + ".join(change.label for change in one.changes)
        self.messages.say(f"what if {name}: {one.problem or ratio_words(one.ratio)}")

    @property
    def _has_gain(self) -> bool:
        return any(one.ratio >= GAIN for one in self.singles)

    def _moment(self, share: float) -> float:
        return self.begun + share * self.seconds

    def _has_time(self, share: float, more_seconds: float = 0.0) -> bool:
        """Until that share of the time, and while the proof of the best still fits in."""
        latest = self._moment(share)
        if self._has_gain:
            proof_seconds = FEWEST_ROUNDS * 2 * self.plain_seconds + self.kept_seconds
            latest = min(latest, self._moment(1.0) - proof_seconds)
        return time.monotonic() + more_seconds < latest
