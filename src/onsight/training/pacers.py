"""Pacers decide how far training goes before the next decision.

The trainer reads no clock to decide anything. It asks its pacer for a segment, trains it, evaluates
if the segment says so, and asks again.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from pydantic import NonNegativeInt, TypeAdapter

from onsight.deadline import Deadline
from onsight.training.decisions import Decisions
from onsight.training.progress import Progress

_MIN_SEGMENT_STEPS = 16
_MIN_SEGMENT_SECONDS = 0.25
_REPLAN_FRACTION = 1 / 8  # of the remaining steps, after which the estimate is corrected
_MAX_VALIDATION_FRACTION = 0.1  # of the time since the last one, for validation after an epoch
_STEP_MARGIN = 1.3  # a step may take this much longer than estimated
_STAGNANT_FRACTION = 0.2  # of the whole budget
_MIN_STAGNANT_SECONDS = 60.0  # in less, a few hundred validation images tell little (NOTEBOOK.md)
# Of the learning rate schedule. Before, the rate is high, and a network that does not improve for a
# while often does so once the rate falls.
_STAGNANT_FROM = 0.5
_CLOSING_FRACTION = 0.2  # of the steps made, times what is left of the schedule, to end it with
_WARM_UP_STEPS = 3  # of a process: they compile, choose kernels and fill caches, and are not timed


@dataclass(frozen=True)
class Segment:
    """A stretch of training between two decisions.

    Step k of the segment uses the learning rate schedule at `(position + k) / total_steps`. A
    segment without steps only evaluates.
    """

    steps: NonNegativeInt
    position: NonNegativeInt
    total_steps: NonNegativeInt
    evaluate: NonNegativeInt  # images of each watched split to evaluate afterwards; 0 for none

    def __post_init__(self) -> None:
        """Check a segment on record. Raises ValueError."""
        if self.position + self.steps > self.total_steps:
            raise ValueError("a segment cannot end after the schedule")


SEGMENT: TypeAdapter[Segment | None] = TypeAdapter(Segment | None)


class Pacer(Protocol):
    """Decides how far to train next."""

    def next_segment(self, progress: Progress) -> Segment | None:
        """Return what is left of the current segment, or the next one; None when finished."""

    def must_stop(self) -> bool:
        """Return whether to end the current segment before its next step; asked once per step."""
        return False

    def end_early(self, progress: Progress) -> None:
        """Take note that the current segment ended after the steps made."""
        return

    def ended_without_gain(self, progress: Progress) -> bool:
        """Return whether training ended because validation no longer improved."""
        return False


@dataclass(frozen=True)
class EpochPacer(Pacer):
    """Trains for a number of epochs, one segment each, or until patience runs out."""

    epochs: int
    steps_per_epoch: int
    evaluate: int  # images of each watched split after an epoch
    patience: int = 0  # epochs without improvement; 0 never stops early

    def next_segment(self, progress: Progress) -> Segment | None:
        """Return the rest of the epoch."""
        if progress.epoch >= self.epochs or is_out_of_patience(progress, self.patience):
            return None
        position = progress.epoch * self.steps_per_epoch + progress.step
        total_steps = self.epochs * self.steps_per_epoch
        return Segment(self.steps_per_epoch - progress.step, position, total_steps, self.evaluate)


class DeadlinePacer(Pacer):
    """Trains until a deadline, with a learning rate schedule that ends there.

    If validation has not improved for a fifth of the whole budget and a minute, in the second half
    of the schedule, the rest of the schedule is shortened to some steps.

    The duration of every segment corrects the estimate of how many steps still fit, and the rest of
    the schedule is stretched over them.

    Args:
        deadline: When training and its last validation must have ended.
        steps_per_epoch: An epoch is followed by validation if that takes a tenth of the time at
            most.
        step_seconds: What a step takes, as timed before training.
        evaluate: Images of each watched split to evaluate at a time.
        evaluation_seconds: What that takes; every evaluation corrects it.
        lag: Steps that are still made, or still queued on an accelerator, after the decision to
            stop.
        patience: Validations without improvement; 0 never stops early.
    """

    def __init__(
        self,
        deadline: Deadline,
        steps_per_epoch: int,
        step_seconds: float,
        evaluate: int,
        evaluation_seconds: float,
        lag: int = 0,
        patience: int = 0,
    ) -> None:
        self._deadline = deadline
        self._steps_per_epoch = steps_per_epoch
        self._step_seconds = max(step_seconds, 1e-6)
        self._evaluate = evaluate
        self._evaluation_seconds = evaluation_seconds
        self._lag = lag
        self._patience = patience
        self._is_closing = False  # the schedule is ended as training brings no gain
        self._warm_up_left = _WARM_UP_STEPS
        self._next_step = 0  # of the run
        self._timed_from: tuple[int, float] | None = None  # step and second; None while warming up
        self._validated_seconds = 0.0  # when this segment began

    def next_segment(self, progress: Progress) -> Segment | None:
        """Return the next stretch, short enough for the estimate to hold."""
        self._correct_estimate(progress)
        remaining_steps = 0 if self._is_late() else self._remaining_steps()
        self._is_closing = self._is_closing or self._is_stagnant(progress)
        if self._is_closing:
            closing = _CLOSING_FRACTION * progress.steps_done * (1 - progress.schedule_fraction)
            remaining_steps = min(remaining_steps, int(closing))
        if remaining_steps < 1 or is_out_of_patience(progress, self._patience):
            is_evaluated = progress.steps_at_evaluation == progress.steps_done
            if is_evaluated or not (progress.steps_done and self._evaluate):
                return None
            return Segment(0, 0, 1, self._evaluate)
        position, total_steps = _stretch(progress.schedule_fraction, remaining_steps)
        steps = self._segment_steps(remaining_steps, progress)
        evaluate = self._evaluate if self._is_evaluated_after(steps, progress) else 0
        self._next_step = progress.steps_done
        self._timed_from = (progress.steps_done, self._deadline.elapsed())
        self._validated_seconds = progress.validation_seconds
        return Segment(steps, position, total_steps, evaluate)

    def must_stop(self) -> bool:
        """Return whether the next step and the last evaluation would end too late."""
        if self._warm_up_left:
            self._warm_up_left -= 1
            self._timed_from = None
        elif self._timed_from is None:
            self._timed_from = (self._next_step, self._deadline.elapsed())
        self._next_step += 1
        return self._is_late()

    def ended_without_gain(self, progress: Progress) -> bool:
        """Return whether the schedule was cut short, or patience ran out."""
        return self._is_closing or is_out_of_patience(progress, self._patience)

    def _is_late(self) -> bool:
        next_steps = (_STEP_MARGIN + self._lag) * self._step_seconds
        return self._deadline.remaining() <= next_steps + self._evaluation_seconds

    def _is_stagnant(self, progress: Progress) -> bool:
        limit_seconds = max(
            _MIN_STAGNANT_SECONDS, _STAGNANT_FRACTION * self._deadline.whole.seconds
        )
        is_late_enough = progress.schedule_fraction >= _STAGNANT_FROM
        return is_late_enough and _seconds_without_gain(progress) >= limit_seconds

    def _correct_estimate(self, progress: Progress) -> None:
        self._evaluation_seconds = progress.last_evaluation_seconds or self._evaluation_seconds
        if self._timed_from is None:
            return
        first_step, begun = self._timed_from
        steps = progress.steps_done - first_step
        if steps > 0:
            evaluating = progress.validation_seconds - self._validated_seconds
            seconds = self._deadline.elapsed() - begun - evaluating
            self._step_seconds = (self._step_seconds + seconds / steps) / 2

    def _remaining_steps(self) -> int:
        """Estimate how many steps fit before the last evaluation, with those after epochs."""
        seconds = self._deadline.remaining() - self._evaluation_seconds
        per_step = self._evaluation_seconds / self._steps_per_epoch
        per_step = min(per_step, _MAX_VALIDATION_FRACTION * self._step_seconds)
        return int(seconds / (self._step_seconds + per_step))

    def _segment_steps(self, remaining_steps: int, progress: Progress) -> int:
        shortest = max(_MIN_SEGMENT_STEPS, int(_MIN_SEGMENT_SECONDS / self._step_seconds))
        to_epoch_end = self._steps_per_epoch - progress.step
        replanned = max(shortest, int(remaining_steps * _REPLAN_FRACTION))
        return min(remaining_steps, to_epoch_end, replanned)

    def _is_evaluated_after(self, steps: int, progress: Progress) -> bool:
        if progress.step + steps < self._steps_per_epoch:
            return False
        unevaluated = progress.steps_done + steps - progress.steps_at_evaluation
        cost = self._evaluation_seconds
        return cost <= _MAX_VALIDATION_FRACTION * (cost + unevaluated * self._step_seconds)


class RecordedPacer(Pacer):
    """Repeats the segments on record, then records the answers of another pacer.

    A segment that another one follows has the length on record. The last one may end early, as the
    run was interrupted in it.
    """

    def __init__(self, pacer: Pacer, decisions: Decisions) -> None:
        self._pacer = pacer
        self._decisions = decisions
        self._is_fixed = False  # whether the current segment has the length on record

    def next_segment(self, progress: Progress) -> Segment | None:
        """Return what is left of the current segment, or the next one."""

        def ask() -> dict[str, Any] | None:
            segment = self._pacer.next_segment(progress)
            return asdict(segment) if segment else None

        name = _name(progress.segments_done)
        self._is_fixed = _name(progress.segments_done + 1) in self._decisions
        if self._decisions.values.get(name) and not self._is_fixed:
            ask()  # only so that the pacer times the rest of this segment
        segment, done = self._decisions.decide(name, ask, SEGMENT), progress.steps_in_segment
        if segment is None:
            return None
        return replace(segment, steps=segment.steps - done, position=segment.position + done)

    def must_stop(self) -> bool:
        """Return whether to end the current segment before its next step."""
        return not self._is_fixed and self._pacer.must_stop()

    def ended_without_gain(self, progress: Progress) -> bool:
        """Return what the other pacer says."""
        return self._pacer.ended_without_gain(progress)

    def end_early(self, progress: Progress) -> None:
        """Record that the current segment ended after the steps made."""
        name = _name(progress.segments_done)
        value = self._decisions.values[name] | {"steps": progress.steps_in_segment}
        self._decisions.record(name, value)


def is_out_of_patience(progress: Progress, patience: int) -> bool:
    """Return whether the last `patience` validations brought no improvement; never for 0."""
    later = [row for row in progress.rows if row["epoch"] > progress.best_epoch]
    return 0 < patience <= sum(row["validation_accuracy"] is not None for row in later)


def _seconds_without_gain(progress: Progress) -> float:
    """Return the seconds of training since validation last had a better accuracy or loss."""
    accuracy, loss, seconds = -1.0, math.inf, 0.0
    for row in progress.rows:
        seconds += row["seconds"]
        found, found_loss = row["validation_accuracy"], row["validation_loss"]
        if found is None or found_loss is None:
            continue
        if found > accuracy or found_loss < loss:
            seconds = 0.0
        accuracy, loss = max(accuracy, found), min(loss, found_loss)
    return seconds if accuracy >= 0 else 0.0


def _name(segment: int) -> str:
    return f"segment {segment}"


def _stretch(fraction: float, remaining_steps: int) -> tuple[int, int]:
    """Spread the rest of the schedule over the remaining steps; return its position and total.

    The completed fraction stays the same, so that the learning rate never jumps.
    """
    total_steps = max(remaining_steps, round(remaining_steps / max(1 - fraction, 1e-6)))
    return total_steps - remaining_steps, total_steps
