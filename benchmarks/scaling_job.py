"""A simulated job: steps, checkpoints written in the background, lost ranks, restarts.

A lost rank ends the step for all ranks. After a while the loss is noticed, the job is restarted,
and it continues from the last complete checkpoint. Ranks may be lost at any time, also during a
restart.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """The steps of a job and what they cost, in seconds.

    interval: from one checkpoint to the next; pause: how long a checkpoint blocks the training;
    write: until its file is complete, in the background; restart: from a loss to the first new
    step.
    """

    steps: int
    step: float
    interval: float
    pause: float = 0.0
    write: float = 0.0
    restart: float = 0.0

    @property
    def stretch(self) -> int:
        """Steps from one checkpoint to the next: as many as it takes for the interval to pass."""
        most = min(self.steps, self.interval / self.step - 1e-9)
        return max(1, math.ceil(most))


@dataclass
class Outcome:
    """The course of a job: total seconds, lost ranks, repeated steps and seconds of each delay."""

    seconds: float = 0.0
    losses: int = 0
    steps_repeated: int = 0
    paused: float = 0.0
    restarting: float = 0.0

    def efficiency(self, job: Job) -> float:
        """The share of the time that went into steps that counted."""
        return job.steps * job.step / self.seconds


def exponential(mean: float, seed: int) -> Iterator[float]:
    """Draw seconds from one loss to the next, exponentially distributed."""
    drawn = random.Random(seed)
    while True:
        yield drawn.expovariate(1 / mean)


def run_job(job: Job, between_losses: Iterator[float]) -> Outcome:
    """Simulate a job. between_losses: seconds from one lost rank to the next."""
    seen = Outcome()
    done = saved = 0  # steps completed, and steps in the last complete checkpoint
    loss = next(between_losses, math.inf)
    while True:
        done, saved = _until_loss(job, saved, loss, seen)
        if done == job.steps:
            return seen
        seen.steps_repeated += done - saved
        loss = _restart(job, loss, between_losses, seen)


def _until_loss(job: Job, saved: int, loss: float, seen: Outcome) -> tuple[int, int]:
    """Train until the end or a loss; returns the steps done and those in a complete checkpoint."""
    done = written = saved
    complete_at = seen.seconds  # when the file with the steps in `written` is complete
    while True:
        coming = min(job.stretch, job.steps - done)
        end = seen.seconds + coming * job.step
        if loss < end:
            done += int((loss - seen.seconds) / job.step)
            break
        done += coming
        if done == job.steps:
            seen.seconds = end
            return done, written
        resumed = max(end, complete_at) + job.pause  # one file is written at a time
        if loss < resumed:
            break
        seen.paused += resumed - end
        seen.seconds = resumed
        saved, written, complete_at = written, done, resumed + job.write
    seen.seconds = loss
    return done, written if complete_at <= loss else saved


def _restart(job: Job, loss: float, between_losses: Iterator[float], seen: Outcome) -> float:
    """Restart, as often as it takes; returns the time of the next loss."""
    while True:
        seen.losses += 1
        following = loss + next(between_losses, math.inf)
        seen.seconds = min(loss + job.restart, following)
        seen.restarting += seen.seconds - loss
        if following >= loss + job.restart:
            return following
        loss = following


def young(pause: float, mean: float) -> float:
    """Young's first-order optimum of the checkpoint interval (1974)."""
    return math.sqrt(2 * pause * mean)


def daly_seconds(job: Job, mean: float) -> float:
    """Daly's expected time (2006), if a checkpoint is complete at the end of its pause."""
    stretches = job.steps / job.stretch
    each = math.expm1((job.stretch * job.step + job.pause) / mean)
    return mean * math.exp(job.restart / mean) * each * stretches
