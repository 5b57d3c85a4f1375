"""Pacers on a simulated clock: nothing waits, and every load pattern can be repeated."""

import copy
import math
import random
from itertools import pairwise

import pytest

from onsight.deadline import Deadline
from onsight.training.decisions import COUNT, Decisions, is_complete, read_decisions
from onsight.training.pacers import DeadlinePacer, EpochPacer, RecordedPacer
from onsight.training.progress import Progress

STEPS_PER_EPOCH = 60
VALIDATION_IMAGES = 400


def steady(now):
    return 1.0


def bursts(now):
    return 2.5 if now % 20 > 14 else 1.0


def slow_from_30_seconds_on(now):
    return 2.5 if now > 30 else 1.0


def drifting(seed):
    generator, factor = random.Random(seed), [1.0]

    def slowdown(now):
        factor[0] = min(3.0, max(1.0, factor[0] * math.exp(generator.gauss(0, 0.03))))
        return factor[0]

    return slowdown


LOADS = [steady, bursts, slow_from_30_seconds_on, *(drifting(seed) for seed in range(8))]


class KilledError(Exception):
    """Raised in place of a SIGKILL."""


class Machine:
    """A clock, and a training loop whose steps and evaluations move it by the load."""

    def __init__(
        self,
        slowdown=steady,
        step_seconds=0.02,
        validation_seconds=0.8,
        steps_per_epoch=STEPS_PER_EPOCH,
        first_step_seconds=0.0,
        loss_at=None,
    ):
        self.now = 0.0
        self.slowdown = slowdown
        self.step_seconds = step_seconds
        self.validation_seconds = validation_seconds
        self.steps_per_epoch = steps_per_epoch
        self.first_step_seconds = first_step_seconds
        self.loss_at = loss_at  # the validation loss by the completed fraction of the schedule
        self.trained_on = []
        self.fractions = []
        self.evaluated_at = []
        self.checkpoint = Progress()

    def pacer(self, seconds, lag=0, step_seconds=None, evaluation_seconds=None, **named):
        deadline = Deadline(seconds, lambda: self.now)
        return DeadlinePacer(
            deadline,
            self.steps_per_epoch,
            step_seconds or self.step_seconds,
            VALIDATION_IMAGES,
            self.validation_seconds if evaluation_seconds is None else evaluation_seconds,
            lag,
            **named,
        )

    def train(self, pacer, progress=None, kill_after=0):
        """The trainer's loop over segments, without a network."""
        progress = progress or Progress()
        while segment := pacer.next_segment(progress):
            for k in range(segment.steps):
                if pacer.must_stop():
                    pacer.end_early(progress)
                    break
                first = self.first_step_seconds if progress.steps_done == 0 else 0.0
                self.now += first + self.step_seconds * self.slowdown(self.now)
                self.trained_on.append((progress.epoch, progress.step))
                self.fractions.append((segment.position + k) / segment.total_steps)
                progress.add_step(1)
                progress.schedule_fraction = (segment.position + k + 1) / segment.total_steps
                self.checkpoint = copy.deepcopy(progress)
                if progress.steps_done == kill_after:
                    raise KilledError
            if segment.evaluate:
                seconds = self.validation_seconds * self.slowdown(self.now)
                self.now += seconds
                progress.validation_seconds += seconds
                progress.last_evaluation_seconds = seconds
                progress.steps_at_evaluation = progress.steps_done
                self.evaluated_at.append(progress.steps_done)
                if self.loss_at:
                    self.add_row(progress)
            if progress.step == self.steps_per_epoch:
                progress.epoch, progress.step = progress.epoch + 1, 0
            progress.segments_done += 1
            progress.steps_in_segment = 0
        return progress

    def add_row(self, progress):
        row = {
            "epoch": progress.epoch + 1,
            "seconds": self.now - sum(row["seconds"] for row in progress.rows),
            "validation_loss": self.loss_at(progress.schedule_fraction),
            "validation_accuracy": 0.5,
        }
        progress.rows.append(row)


@pytest.mark.parametrize("slowdown", LOADS)
def test_a_deadline_is_kept_and_used(slowdown):
    machine = Machine(slowdown)
    progress = machine.train(machine.pacer(50))
    slowest = 3.0
    assert machine.now <= 50 + (slowest - 1) * 0.8  # the last validation itself may be slowed down
    assert machine.now >= 0.95 * 50
    assert progress.steps_at_evaluation == progress.steps_done


@pytest.mark.parametrize("slowdown", LOADS)
def test_the_schedule_never_goes_back_and_reaches_its_end(slowdown):
    machine = Machine(slowdown)
    machine.train(machine.pacer(50))
    assert all(after >= before - 1e-3 for before, after in pairwise(machine.fractions))
    assert machine.fractions[-1] >= 0.95


@pytest.mark.parametrize("error", [0.2, 5.0])
def test_a_wrong_first_estimate_is_corrected(error):
    machine = Machine()
    machine.train(machine.pacer(50, step_seconds=0.02 * error))
    assert 0.95 * 50 <= machine.now <= 50
    assert machine.fractions[-1] >= 0.95


def test_compiling_in_the_first_step_does_not_count_as_its_speed():
    machine = Machine(first_step_seconds=15.0)
    pacer = machine.pacer(50)
    machine.train(pacer)
    assert 0.95 * 50 <= machine.now <= 50
    # 35 s are left for about 1,600 steps; by the first one they would be a hundred or so.
    assert machine.fractions[100] == pytest.approx(100 / 1600, rel=0.5)


def test_validation_takes_a_tenth_of_the_time_at_most():
    machine = Machine(validation_seconds=3)
    progress = machine.train(machine.pacer(50))
    last = 3
    assert progress.validation_seconds <= 0.1 * 50 + last


def test_only_the_last_validation_is_within_an_epoch():
    machine = Machine(validation_seconds=0.01)
    machine.train(machine.pacer(50))
    *after_epochs, last = machine.evaluated_at
    assert len(after_epochs) > 10
    assert all(steps % STEPS_PER_EPOCH == 0 for steps in after_epochs)
    assert last == len(machine.trained_on)


def test_validations_correct_their_estimate():
    machine = Machine(validation_seconds=2)
    machine.train(machine.pacer(50, evaluation_seconds=0.1))
    assert machine.now <= 50


def test_an_epoch_longer_than_the_time_follows_the_speed():
    machine = Machine(slow_from_30_seconds_on, steps_per_epoch=100_000)
    machine.train(machine.pacer(50))
    assert machine.now <= 50 + 1.5 * 0.8
    assert machine.fractions[-1] >= 0.95


def test_time_is_left_for_the_steps_an_accelerator_is_behind():
    machine = Machine()
    machine.train(machine.pacer(50, lag=16))
    assert machine.now <= 50 - 16 * 0.02


def test_a_deadline_that_has_passed_trains_nothing():
    machine = Machine()
    assert machine.train(machine.pacer(0)).steps_done == 0


def test_a_step_longer_than_the_time_ends_training():
    machine = Machine(step_seconds=4, validation_seconds=0.1)
    progress = machine.train(machine.pacer(10))
    assert 1 <= progress.steps_done <= 2


def test_without_validation_images_nothing_is_evaluated():
    machine = Machine()
    pacer = DeadlinePacer(Deadline(20, lambda: machine.now), 60, 0.02, 0, 0.0)
    progress = machine.train(pacer)
    assert progress.validation_seconds == 0
    assert 19 <= machine.now <= 20


def test_epochs_use_every_batch_once_and_the_exact_schedule():
    machine = Machine()
    machine.train(EpochPacer(3, STEPS_PER_EPOCH, VALIDATION_IMAGES))
    assert machine.trained_on == [(e, s) for e in range(3) for s in range(STEPS_PER_EPOCH)]
    assert machine.fractions == [k / 180 for k in range(180)]


@pytest.mark.parametrize("pacer", ["epochs", "deadline"])
def test_patience_ends_training(pacer):
    machine = Machine()
    made = {
        "epochs": EpochPacer(3, STEPS_PER_EPOCH, VALIDATION_IMAGES, patience=2),
        "deadline": machine.pacer(20, patience=2),
    }[pacer]
    rows = [{"epoch": epoch, "validation_accuracy": 0.5} for epoch in (1, 2)]
    unvalidated = {"epoch": 2, "validation_accuracy": None}
    assert made.next_segment(Progress(epoch=2, rows=rows)) is None
    assert made.next_segment(Progress(epoch=2, rows=rows, best_epoch=1)).steps > 0
    assert made.next_segment(Progress(epoch=2, rows=[rows[0], unvalidated])).steps > 0


@pytest.mark.parametrize(
    ("loss_at", "budget", "expected_seconds"),
    [
        pytest.param(lambda fraction: 1 - fraction, 400, 400, id="improves to the end"),
        pytest.param(
            lambda fraction: max(1 - fraction, 0.4), 400, 340, id="overfits from 240 s on"
        ),
        pytest.param(lambda fraction: max(1 - fraction, 0.9), 400, 220, id="hardly learns at all"),
        pytest.param(
            lambda fraction: 0.9 if fraction < 0.45 else 1 - fraction,
            400,
            400,
            id="is stuck while the learning rate is high",
        ),
        pytest.param(
            lambda fraction: max(1 - fraction, 0.15), 400, 400, id="stops at the very end"
        ),
        pytest.param(
            lambda fraction: max(1 - fraction, 0.6), 100, 100, id="for less than a minute"
        ),
    ],
)
def test_training_ends_early_if_a_fifth_of_the_budget_brings_no_gain(
    loss_at, budget, expected_seconds
):
    machine = Machine(step_seconds=0.08, validation_seconds=0.4, loss_at=loss_at)
    machine.train(machine.pacer(budget))
    assert machine.now == pytest.approx(expected_seconds, abs=30)
    assert machine.fractions[-1] >= 0.95  # with a low learning rate, all the same


def test_the_fifth_is_of_the_whole_budget_for_a_part_of_it():
    machine = Machine(validation_seconds=0.1, loss_at=lambda fraction: max(1 - fraction, 0.95))
    whole = Deadline(400, lambda: machine.now)
    pacer = DeadlinePacer(whole.part(0.25), STEPS_PER_EPOCH, 0.02, VALIDATION_IMAGES, 0.1)
    machine.train(pacer)
    assert machine.now == pytest.approx(87, abs=4)  # 80 s after the last gain, at 5 s


def test_without_time_for_a_step_nothing_is_evaluated():
    machine = Machine()
    assert machine.pacer(0.5).next_segment(Progress()) is None


@pytest.mark.parametrize("slowdown", LOADS)
def test_a_record_repeats_every_step_on_another_machine(slowdown, tmp_path):
    recorded = Machine(slowdown)
    decisions = Decisions(tmp_path, is_timed=True)
    recorded.train(RecordedPacer(recorded.pacer(50), decisions))
    assert is_complete(read_decisions(tmp_path))
    slower = Machine(bursts, step_seconds=0.07)
    slower.train(RecordedPacer(slower.pacer(1), Decisions(tmp_path)))
    assert slower.trained_on == recorded.trained_on
    assert slower.fractions == recorded.fractions


@pytest.mark.parametrize("killed_after", [1, 15, 16, 17, 59, 60, 61, 500, 1201])
def test_a_killed_run_repeats_what_is_on_record_and_keeps_its_deadline(killed_after, tmp_path):
    machine = Machine()
    decisions = Decisions(tmp_path, is_timed=True)
    with pytest.raises(KilledError):
        machine.train(RecordedPacer(machine.pacer(50), decisions), kill_after=killed_after)
    resumed = RecordedPacer(machine.pacer(50), Decisions(tmp_path, is_timed=True))
    machine.train(resumed, machine.checkpoint)
    assert 0.95 * 50 <= machine.now <= 50
    assert machine.fractions[-1] >= 0.95
    assert len(set(machine.trained_on)) == len(machine.trained_on)
    whole = Machine(slow_from_30_seconds_on)
    whole.train(RecordedPacer(whole.pacer(1), Decisions(tmp_path)))
    assert whole.trained_on == machine.trained_on
    assert whole.fractions == machine.fractions


def test_a_run_killed_in_a_segment_still_ends_in_time(tmp_path):
    machine = Machine(step_seconds=1.0, steps_per_epoch=1000)
    pacer = RecordedPacer(machine.pacer(50), Decisions(tmp_path, is_timed=True))
    with pytest.raises(KilledError):
        machine.train(pacer, kill_after=2)
    machine.now = 45.0  # a clock that ran on
    resumed = RecordedPacer(machine.pacer(50), Decisions(tmp_path, is_timed=True))
    machine.train(resumed, machine.checkpoint)
    assert 48 <= machine.now <= 50
    again = Machine()
    again.train(RecordedPacer(again.pacer(1), Decisions(tmp_path)))
    assert again.trained_on == machine.trained_on
    assert again.fractions == machine.fractions


def test_a_segment_that_ended_early_is_repeated_as_long_as_it_was(tmp_path):
    machine = Machine(lambda now: 40.0 if now > 5 else 1.0)
    decisions = Decisions(tmp_path, is_timed=True)
    progress = machine.train(RecordedPacer(machine.pacer(20), decisions))
    recorded = read_decisions(tmp_path)
    steps = [segment["steps"] for segment in recorded.values() if segment]
    assert sum(steps) == progress.steps_done


def test_a_record_cut_short_is_read_up_to_there(tmp_path):
    decisions = Decisions(tmp_path, is_timed=True)
    assert decisions.decide("parts", lambda: 2, COUNT) == 2
    decisions.record("parts", 4)
    with (tmp_path / "decisions.jsonl").open("a") as file:
        file.write('{"decision": "images", "val')
    again = Decisions(tmp_path, is_timed=True)
    assert again.values == {"parts": 4}
    assert again.decide("parts", lambda: 8, COUNT) == 4


def test_decisions_made_for_something_else_are_not_repeated(tmp_path):
    first = Decisions(tmp_path, is_timed=True)
    first.begin({"images": "a", "ranks": 1})
    first.decide("parts", lambda: 2, COUNT)
    for header, odd in (
        ({"images": "a", "ranks": 1}, []),
        ({"images": "b", "ranks": 1}, ["images"]),
    ):
        other = Decisions(repeated_run=tmp_path)
        assert other.begin(header) == odd
        assert ("parts" in other) == (not odd)


def test_without_a_deadline_nothing_but_memory_is_on_record(tmp_path):
    decisions = Decisions(tmp_path)
    assert decisions.decide("images", lambda: 7, COUNT) == 7
    assert not (tmp_path / "decisions.jsonl").exists()
    decisions.record("accumulate from epoch 0, step 3", 2)
    assert read_decisions(tmp_path) == {"accumulate from epoch 0, step 3": 2}
