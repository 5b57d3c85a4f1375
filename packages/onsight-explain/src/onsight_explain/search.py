"""Search for the fastest combination of changes: drop slow ones, combine the best, confirm it."""

import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, TypeVar

from onsight_explain.console import Messages
from onsight_explain.paired_timing import MIN_CLEAR_GAIN, MIN_ROUNDS, PairedRounds, RatioInterval
from onsight_explain.text import ratio_words

MIN_GAIN = 1.05  # speed-up below which a change counts as noise
_MIN_ADDED_GAIN = 1.03  # speed-up that a change must add to join a combination

_SINGLES_UNTIL = 0.55  # start no single change after this share of the time
_REPEATS_UNTIL = 0.65  # repeat no single change after this share, if it can be combined
_COMBINATIONS_UNTIL = 0.8  # start no combination after this share of the time
_STALLED_RATIO = 0.5  # below this share of the usual speed, assume other load and repeat the round
_FRESH_FACTOR = 3.0  # a baseline rate may be reused for this many times its duration
_EPOCH_FACTOR = 3.0  # a measurement of this many times a window's length is a whole epoch
_CONTROL_SHARE = 0.15  # fraction of the time for the control
_LEADERS = 4  # number of single changes to measure in several rounds

Losses = Literal["same", "close", "alike", "other", "not comparable"]


class SearchChange(Hashable, Protocol):
    """A change of a training run. A combination has at most one change of each group."""

    @property
    def label(self) -> str:
        """The change in a few words."""

    @property
    def group(self) -> str:
        """The setting that is changed."""


C = TypeVar("C", bound=SearchChange)


class TrialFailed(Exception):
    """A trial could not be measured; the message is one line with the reason."""


class SearchTrial(Protocol):
    """A training run with some changes, which advances only while it is measured."""

    def measure(self, seconds: float) -> float:
        """Train for about this many seconds and return images/s. Raises TrialFailed."""

    def losses(self) -> Losses:
        """Compare the first losses with those of the unchanged training."""

    def notes(self) -> list[str]:
        """Return remarks on changes that could not be made, or not completely."""

    def close(self) -> None:
        """Free its memory. A later measurement starts the training again."""


class Bench(Protocol[C]):
    """Opens trials, and proposes changes for them."""

    def open(self, changes: tuple[C, ...]) -> SearchTrial:
        """Return a trial with these changes; with none, the unchanged training."""

    def candidates(self, trial: Any) -> list[C]:
        """Return changes that could speed up an open trial, the most promising first."""


@dataclass(frozen=True)
class TrialResult(Generic[C]):
    """The effect of one or several changes, measured beside the unchanged training."""

    changes: tuple[C, ...]
    images_per_second: float = 0.0
    interval: RatioInterval | None = None  # interval of the speed-up; None if there is a problem
    losses: Losses = "not comparable"
    problem: str = ""  # why there is no measurement
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
    def is_clear_gain(self) -> bool:
        """Whether even the lower end of the speed-up's interval is more than noise."""
        return self.interval is not None and self.interval.is_clear_gain

    @property
    def has_enough_rounds(self) -> bool:
        """Whether there were enough rounds to compare the interval with others."""
        return self.interval is not None and self.interval.rounds >= MIN_ROUNDS


@dataclass(frozen=True)
class SearchResult(Generic[C]):
    """The tried changes, and the winner."""

    results: list[TrialResult[C]]  # single changes, in the order in which they were tried
    best: TrialResult[C] | None  # None if nothing was faster or could be confirmed
    baseline_rates: list[float]  # images/s of the unchanged training, in every round
    skipped: list[C]  # not tried, because time ran out
    # How many times as fast the unchanged training was as itself, in the rounds of a second trial.
    control: list[float] = field(default_factory=list)

    @property
    def min_gain(self) -> float:
        """The smallest speed-up that can be told from noise: the control showed none larger."""
        return max([MIN_CLEAR_GAIN, *self.control, *(1 / ratio for ratio in self.control)])


@dataclass
class _Entry(Generic[C]):
    """Changes that compete in the search, and their rounds so far."""

    changes: tuple[C, ...]
    trial: SearchTrial
    rounds: PairedRounds = field(default_factory=PairedRounds)
    problem: str = ""
    base_ratio: float = 1.0  # speed-up of the training that the rounds compare with

    @property
    def groups(self) -> set[str]:
        return {change.group for change in self.changes}

    @property
    def ratio(self) -> float:
        """The median speed-up over the unchanged training; 0 if there is a problem."""
        return 0.0 if self.problem else self.base_ratio * self.rounds.median_ratio

    @property
    def is_faster(self) -> bool:
        return self.ratio >= MIN_GAIN

    def result(self, min_gain: float) -> TrialResult[C]:
        if self.problem:
            return TrialResult(self.changes, problem=self.problem)
        return TrialResult(
            self.changes,
            statistics.fmean(self.rounds.changed),
            replace(self.rounds.interval, min_gain=min_gain),
            self.trial.losses(),
            notes=self.trial.notes(),
        )


class Search(Generic[C]):
    """A search for faster changes within a limited time."""

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

        baseline: the unchanged training.
        seconds: the time for the whole search.
        window_seconds: the length of one measurement.
        reserved_seconds: the part of `seconds` to leave unused if a change is faster.
        """
        self.bench, self.baseline, self.messages = bench, baseline, messages
        self.window_seconds, self.reserved_seconds = window_seconds, reserved_seconds
        self.started, self.seconds = time.monotonic(), seconds
        self.baseline_rates: list[float] = []
        self.baseline_seconds = 0.0  # duration of the latest baseline measurement
        self.baseline_fresh_until = 0.0  # until then the latest baseline rate may be reused
        self.singles: list[_Entry[C]] = []
        self.control: _Entry[C] = _Entry((), bench.open(()))

    def run(self, changes: Sequence[C]) -> SearchResult[C]:
        """Try the changes in this order while there is time, and combine the best of them."""
        skipped = self._try_singles(changes)
        self._repeat_leaders()
        best = self._combine()
        while self._control_rounds_left and not self.control.problem:
            if self.control.rounds.baseline and time.monotonic() > self._time_at(1.0):
                break  # other work makes everything slow
            self._measure_round(self.control)
        self.control.trial.close()
        noise = SearchResult[C]([], None, self.baseline_rates, skipped, self._control_ratios)
        results = [entry.result(noise.min_gain) for entry in self.singles]
        confirmed = self._confirm(best, results, noise.min_gain) if best else None
        return replace(noise, results=results, best=confirmed)

    def _try_singles(self, changes: Sequence[C]) -> list[C]:
        """Measure each change in one round; return the changes that time did not allow."""
        longest = 0.0
        for index, change in enumerate(changes):
            now = time.monotonic()
            until = _SINGLES_UNTIL if self._has_gain else 1.0  # without a gain, nothing comes after
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
        """Measure the fastest single changes and the control in more rounds.

        Changes that were no faster are among them if the control shows that noise may hide a gain.
        """
        control = [self.control] if self._control_rounds_left else []
        self._measure_if_needed(control, 0, _COMBINATIONS_UNTIL)
        noise = max([1.0, *(max(ratio, 1 / ratio) for ratio in self._control_ratios)])
        leaders = [entry for entry in self._ranked_singles() if entry.ratio * noise >= MIN_GAIN]
        faster_groups = {entry.changes[0].group for entry in leaders if entry.is_faster}
        until = _REPEATS_UNTIL if len(faster_groups) > 1 else _COMBINATIONS_UNTIL
        for number in range(1, MIN_ROUNDS):
            control = [self.control] if self._control_rounds_left else []
            self._measure_if_needed([*leaders[:_LEADERS], *control], number, until)

    def _measure_if_needed(self, entries: Sequence[_Entry[C]], rounds: int, until: float) -> None:
        """Measure the entries with this many rounds once more, until this share of the time."""
        for entry in entries:
            needs_round = len(entry.rounds.baseline) == rounds and not entry.problem
            if needs_round and self._has_time(until):
                self._measure_round(entry)

    def _combine(self) -> _Entry[C] | None:
        """Start from the fastest change and add each change that speeds it up further.

        Changes that were faster alone come first. The bench then proposes others, because a change
        that was no faster alone may be once the combination has moved the bottleneck.
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
                best.trial.close()
                best = combined
            else:
                combined.trial.close()
        return best

    def _try_combination(self, best: _Entry[C], change: C) -> _Entry[C]:
        """Compare the best combination so far with itself plus one change.

        Stop after the first round in which the added change shows no gain over all rounds so far.
        """
        changes = (*best.changes, change)
        combined = _Entry(changes, self.bench.open(changes), base_ratio=best.ratio)
        while len(combined.rounds.baseline) < MIN_ROUNDS and not combined.problem:
            if combined.rounds.baseline and combined.ratio < _MIN_ADDED_GAIN * best.ratio:
                break
            self._measure_round(combined, best)
        self._report(combined)
        return combined

    def _confirm(
        self, best: _Entry[C], singles: Sequence[TrialResult[C]], min_gain: float
    ) -> TrialResult[C] | None:
        """Compare the best combination with the unchanged training in new rounds.

        The old rounds overestimate it, because it was selected by them. A single change is returned
        instead if the lower end of its interval is higher, and either its speed-up is at least as
        large or the combination's gain is not clear.
        """
        entry = _Entry(best.changes, best.trial)
        end = self._time_at(1.0) - self.reserved_seconds
        while not entry.problem and not entry.rounds.are_enough(time.monotonic() > end):
            self._measure_round(entry)
        winner = entry.result(min_gain)
        for single in singles:
            may_replace = single.ratio >= winner.ratio or not winner.is_clear_gain
            if single.has_enough_rounds and single.low > winner.low and may_replace:
                winner = single
        if not winner.interval:
            return None
        self.messages.say(f"{winner.name} vs. unchanged: {winner.interval}")
        return winner

    def _measure_round(
        self, entry: _Entry[C], base: _Entry[C] | None = None, may_reuse_baseline: bool = False
    ) -> None:
        """Measure an entry and its base in one round; repeat the round once if either stalled.

        base: the entry to compare with; None for the unchanged training.
        may_reuse_baseline: use a recent rate of the unchanged training instead of measuring it.
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
                    self.baseline_fresh_until = 0.0  # measure the baseline anew
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
    def _control_rounds_left(self) -> int:
        """The rounds that the control still needs: one in all if they are whole epochs or long."""
        is_epoch = self.baseline_seconds >= _EPOCH_FACTOR * self.window_seconds
        is_long = MIN_ROUNDS * 2 * self.window_seconds > _CONTROL_SHARE * self.seconds
        rounds = 1 if is_epoch or is_long else MIN_ROUNDS
        return max(0, rounds - len(self.control.rounds.baseline))

    @property
    def _control_ratios(self) -> list[float]:
        return [] if self.control.problem else self.control.rounds.ratios

    @property
    def _has_gain(self) -> bool:
        return any(entry.is_faster for entry in self.singles)

    def _time_at(self, share: float) -> float:
        """Return the clock time when this share of the search's time is over."""
        return self.started + share * self.seconds

    def _has_time(self, share: float, more_seconds: float = 0.0) -> bool:
        """Return whether `more_seconds` fit into this share, and a confirmation after them."""
        needed_seconds = self._control_rounds_left * 2 * self.window_seconds
        if self._has_gain:
            needed_seconds += MIN_ROUNDS * 2 * self.baseline_seconds + self.reserved_seconds
        latest = min(self._time_at(share), self._time_at(1.0) - needed_seconds)
        return time.monotonic() + more_seconds < latest


def _is_stalled(rate: float, usual: Sequence[float]) -> bool:
    return len(usual) >= MIN_ROUNDS and rate < _STALLED_RATIO * statistics.median(usual)


def _join_labels(changes: Sequence[SearchChange]) -> str:
    return " + ".join(change.label for change in changes)
