"""Search for the fastest combination of changes: drop slow ones, combine the best, confirm it."""

import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from onsight_explain.console import Messages
from onsight_explain.paired_timing import MIN_ROUNDS, PairedRounds, RatioInterval
from onsight_explain.text import ratio_words

MIN_GAIN = 1.05  # times as fast to count as faster: a machine's noise is about as large
_MIN_ADDED_GAIN = 1.03  # times the speed of a combination, for a change to be added to it

# Shares of the time after which no single change, and no combination, is started any more.
_SINGLES_UNTIL, _COMBINATIONS_UNTIL = 0.55, 0.8
_STALLED_RATIO = 0.5  # below this share of the usual speed, assume other load and repeat the round
_FRESH_FACTOR = 3.0  # a baseline rate may be reused for this many times its duration
_LEADERS = 4  # single changes that are measured in several rounds
_MAX_ROUNDS, _NARROW = 8, 1.15  # confirm the winner until high / low of its interval is that small

Losses = Literal["same", "close", "alike", "other", "not comparable"]


class SearchChange(Hashable, Protocol):
    """A change of a training run. Only one change of a group is applied at a time."""

    @property
    def label(self) -> str:
        """The change in a few words."""

    @property
    def group(self) -> str:
        """The setting that it changes."""


C = TypeVar("C", bound=SearchChange)


class TrialFailed(Exception):
    """A trial could not be measured; the message is one line with the reason."""


class SearchTrial(Protocol):
    """A training with some changes. It runs only while it is measured."""

    def measure(self, seconds: float) -> float:
        """Return images per second over about this many seconds. Raises TrialFailed."""

    def losses(self) -> Losses:
        """Compare its first losses with those of the unchanged training."""

    def notes(self) -> list[str]:
        """Return remarks on changes that could not be made, or not completely."""

    def close(self) -> None:
        """Free its memory. Measuring it again starts the training again."""


class Bench(Protocol[C]):
    """Opens trials, and proposes changes for them."""

    def open(self, changes: tuple[C, ...]) -> SearchTrial:
        """Return a trial with these changes; without any, of the unchanged training."""

    def candidates(self, trial: Any) -> list[C]:
        """Return the changes that could speed up one of its trials, the most promising first."""


@dataclass(frozen=True)
class TrialResult(Generic[C]):
    """The effect of one or several changes, measured beside the unchanged training."""

    changes: tuple[C, ...]
    images_per_second: float = 0.0
    interval: RatioInterval | None = None  # interval of the speed-up; None if there is a problem
    losses: Losses = "not comparable"
    problem: str = ""  # why it could not be measured
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The labels of the changes, joined by +."""
        return _join_labels(self.changes)

    @property
    def groups(self) -> set[str]:
        """The groups of the changes."""
        return {change.group for change in self.changes}

    @property
    def ratio(self) -> float:
        """The speed-up, the geometric mean of the rounds; 0 if there is a problem."""
        return self.interval.ratio if self.interval else 0.0

    @property
    def low(self) -> float:
        """The lower end of the speed-up's interval; 0 if there is a problem."""
        return self.interval.low if self.interval else 0.0

    @property
    def has_enough_rounds(self) -> bool:
        """Whether there were enough rounds for its interval to be compared with others."""
        return self.interval is not None and self.interval.rounds >= MIN_ROUNDS


@dataclass(frozen=True)
class SearchResult(Generic[C]):
    """The result of a search."""

    results: list[TrialResult[C]]  # single changes, in the order in which they were tried
    best: TrialResult[C] | None  # None if nothing was faster
    baseline_rates: list[float]  # images/s of the unchanged training, in every round
    skipped: list[C]  # not tried, because time ran out


@dataclass
class _Entry(Generic[C]):
    """Changes that take part in the search, and their rounds so far."""

    changes: tuple[C, ...]
    trial: SearchTrial
    rounds: PairedRounds = field(default_factory=PairedRounds)
    problem: str = ""
    base_ratio: float = 1.0  # the speed-up of the training that its rounds are measured against

    @property
    def groups(self) -> set[str]:
        return {change.group for change in self.changes}

    @property
    def ratio(self) -> float:
        """The speed-up over the unchanged training, by the median; 0 if there is a problem."""
        return 0.0 if self.problem else self.base_ratio * self.rounds.median_ratio

    @property
    def is_faster(self) -> bool:
        return self.ratio >= MIN_GAIN

    def result(self) -> TrialResult[C]:
        if self.problem:
            return TrialResult(self.changes, problem=self.problem)
        return TrialResult(
            self.changes,
            statistics.fmean(self.rounds.changed),
            self.rounds.interval,
            self.trial.losses(),
            notes=self.trial.notes(),
        )


class Search(Generic[C]):
    """One search for faster changes, which ends in time."""

    def __init__(
        self,
        bench: Bench[C],
        baseline: SearchTrial,
        seconds: float,
        window_seconds: float,
        messages: Messages,
        reserved_seconds: float = 0.0,
    ) -> None:
        """Start the clock.

        baseline: of the unchanged training; window_seconds: length of one measurement;
        reserved_seconds: part of `seconds` to leave for what follows if something is faster.
        """
        self.bench, self.baseline, self.messages = bench, baseline, messages
        self.window_seconds, self.reserved_seconds = window_seconds, reserved_seconds
        self.started, self.seconds = time.monotonic(), seconds
        self.baseline_rates: list[float] = []
        self.baseline_seconds = 0.0  # that its last measurement took
        self.baseline_fresh_until = 0.0
        self.singles: list[_Entry[C]] = []

    def run(self, changes: Sequence[C]) -> SearchResult[C]:
        """Try the changes in this order while there is time, and combine the best of them."""
        skipped = self._try_singles(changes)
        self._repeat_leaders()
        best = self._combine()
        results = [entry.result() for entry in self.singles]
        confirmed = self._confirm(best, results) if best else None
        return SearchResult(results, confirmed, self.baseline_rates, skipped)

    def _try_singles(self, changes: Sequence[C]) -> list[C]:
        """Measure each change in one round; return those for which there was no time."""
        longest = 0.0
        for index, change in enumerate(changes):
            now = time.monotonic()
            until = _SINGLES_UNTIL if self._has_gain else 1.0  # without a gain, nothing follows
            if self.singles and not self._has_time(until, longest / 2):
                return list(changes[index:])
            entry = _Entry((change,), self.bench.open((change,)))
            self.singles.append(entry)
            self._measure_round(entry, may_reuse_baseline=True)
            longest = max(longest, time.monotonic() - now)
            self._report(entry)
            self._close_slowest()
        return []

    def _repeat_leaders(self) -> None:
        """Measure the fastest single changes again, until their intervals can be compared."""
        leaders = [entry for entry in self._ranked_singles() if entry.is_faster][:_LEADERS]
        for number in range(1, MIN_ROUNDS):
            for entry in leaders:
                is_behind = len(entry.rounds.baseline) == number
                if is_behind and self._has_time(_COMBINATIONS_UNTIL):
                    self._measure_round(entry)

    def _combine(self) -> _Entry[C] | None:
        """Start from the fastest change and add every other one that makes it faster still.

        Changes that gained alone come first. Then the bench proposes others: with the time spent
        elsewhere, changes that gained nothing alone may gain now.
        """
        faster = [entry for entry in self._ranked_singles() if entry.is_faster]
        if not faster:
            return None
        best, tried = faster[0], set[C]()
        queue = [entry.changes[0] for entry in faster[1:]]
        while self._has_time(_COMBINATIONS_UNTIL):
            queue = queue or self.bench.candidates(best.trial)
            queue = [
                change
                for change in queue
                if change not in tried and change.group not in best.groups
            ]
            if not queue:
                break
            change, *queue = queue
            tried.add(change)
            combined = self._try_combination(best, change)
            if combined.ratio >= _MIN_ADDED_GAIN * best.ratio:
                best = combined
            else:
                combined.trial.close()
        return best

    def _try_combination(self, best: _Entry[C], change: C) -> _Entry[C]:
        """Measure the best so far with one more change beside the best so far.

        It stops as soon as the rounds show no gain; a gain has to hold over several rounds.
        """
        changes = (*best.changes, change)
        combined = _Entry(changes, self.bench.open(changes), base_ratio=best.ratio)
        while len(combined.rounds.baseline) < MIN_ROUNDS and not combined.problem:
            if combined.rounds.baseline and combined.ratio < _MIN_ADDED_GAIN * best.ratio:
                break
            self._measure_round(combined, best)
        self._report(combined)
        return combined

    def _confirm(self, best: _Entry[C], singles: Sequence[TrialResult[C]]) -> TrialResult[C] | None:
        """Measure the winner beside the unchanged training in new rounds.

        Its old rounds are partly luck, because they made it the winner. A single change with a
        higher lower end wins instead if it gained more, or if the winner's gain is not clear.
        """
        entry = _Entry(best.changes, best.trial)
        while len(entry.rounds.baseline) < _MAX_ROUNDS and not entry.problem:
            if len(entry.rounds.baseline) >= MIN_ROUNDS:
                interval = entry.rounds.interval
                is_late = time.monotonic() > self._moment(1.0) - self.reserved_seconds
                if interval.high < _NARROW * interval.low or is_late:
                    break
            self._measure_round(entry)
        winner = entry.result()
        for single in singles:
            is_clear = winner.interval and winner.interval.is_clear_gain
            is_better = single.ratio >= winner.ratio or not is_clear
            if single.has_enough_rounds and single.low > winner.low and is_better:
                winner = single
        if not winner.interval:
            return None
        self.messages.say(f"{winner.name} vs. unchanged: {winner.interval}")
        return winner

    def _measure_round(
        self, entry: _Entry[C], base: _Entry[C] | None = None, may_reuse_baseline: bool = False
    ) -> None:
        """Measure an entry beside another one, or the unchanged training; once more if stalled.

        may_reuse_baseline: use a recent rate of the unchanged training instead of a new one.
        """
        usual_rates = base.rounds.changed if base else self.baseline_rates

        def measure_base() -> float:
            if may_reuse_baseline and time.monotonic() < self.baseline_fresh_until:
                return self.baseline_rates[-1]
            return base.trial.measure(self.window_seconds) if base else self._measure_baseline()

        try:
            for attempt in range(2):
                entry.rounds.measure(measure_base, lambda: entry.trial.measure(self.window_seconds))
                rates, changed = entry.rounds.baseline, entry.rounds.changed
                is_baseline_stalled = _is_stalled(rates[-1], usual_rates)
                if not is_baseline_stalled and not _is_stalled(changed[-1], changed):
                    return
                if attempt == 0:
                    rate = rates.pop()
                    changed.pop()
                    self.baseline_fresh_until = 0.0  # the repeated round measures it again
                    if is_baseline_stalled and not base:
                        self.baseline_rates.remove(rate)
        except TrialFailed as error:
            entry.problem = str(error)
            entry.trial.close()

    def _measure_baseline(self) -> float:
        started = time.monotonic()
        self.baseline_rates.append(self.baseline.measure(self.window_seconds))
        self.baseline_seconds = time.monotonic() - started
        self.baseline_fresh_until = time.monotonic() + _FRESH_FACTOR * self.baseline_seconds
        return self.baseline_rates[-1]

    def _close_slowest(self) -> None:
        """Free the memory of trials that will not be measured again."""
        for rank, entry in enumerate(self._ranked_singles()):
            if rank >= _LEADERS or not entry.is_faster:
                entry.trial.close()

    def _ranked_singles(self) -> list[_Entry[C]]:
        return sorted(self.singles, key=lambda entry: -entry.ratio)

    def _report(self, entry: _Entry[C]) -> None:
        result = entry.problem or ratio_words(entry.ratio)
        self.messages.say(f"what if {_join_labels(entry.changes)}: {result}")

    @property
    def _has_gain(self) -> bool:
        return any(entry.is_faster for entry in self.singles)

    def _moment(self, share: float) -> float:
        return self.started + share * self.seconds

    def _has_time(self, share: float, more_seconds: float = 0.0) -> bool:
        """Whether that share of the time is not over, and the winner can still be confirmed."""
        latest = self._moment(share)
        if self._has_gain:
            confirm_seconds = MIN_ROUNDS * 2 * self.baseline_seconds + self.reserved_seconds
            latest = min(latest, self._moment(1.0) - confirm_seconds)
        return time.monotonic() + more_seconds < latest


def _is_stalled(rate: float, usual: Sequence[float]) -> bool:
    return len(usual) >= MIN_ROUNDS and rate < _STALLED_RATIO * statistics.median(usual)


def _join_labels(changes: Sequence[SearchChange]) -> str:
    return " + ".join(change.label for change in changes)
