"""Oracles: a fake clock for the budget, made-up paces for what fits into it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from onsight.config import make_config
from onsight.errors import ConfigError
from onsight.report.console import SilentReporter
from onsight.training import run_session
from onsight.training.run import train
from onsight.tune.budget import Budget, read_budget


class Clock:
    """Seconds spent, set by the test."""

    def __init__(self, now=2.0):
        self.now = now

    def __call__(self):
        return self.now


def share_at(budget, clock, now):
    clock.now = now
    budget.look()
    return budget.share


def test_budgets_are_read_with_their_units():
    assert [read_budget(text) for text in ("90s", "1.5m", "2h", "")] == [90, 90, 7200, 0]


@pytest.mark.parametrize("bad", ["90", "5 m", "-3s", "h", "1d"])
def test_a_budget_without_a_unit_is_refused(bad):
    with pytest.raises(ConfigError, match="90s, 5m or 2h"):
        make_config({"budget": bad})


def test_training_gets_the_time_that_evaluating_and_closing_leave():
    clock = Clock(2.0)
    budget = Budget(60, clock)
    clock.now = 10.0
    budget.reserve(tested=900, validation=100, image_seconds=0.004)
    budget.begin(0.0)
    # 900 images are tested, and 100 validated, once more used to fit the temperature, and again
    # with 100 of training to tell unlike ones.
    assert budget.left_seconds == pytest.approx(60 - 1.8 - 5.2 - 10)
    assert budget.share == 0
    assert share_at(budget, clock, 10 + 43.0 / 2) == pytest.approx(0.5)
    assert not budget.is_over()
    assert share_at(budget, clock, 53.01) == pytest.approx(1)
    assert budget.is_over()


def test_closing_takes_a_little_less_than_starting():
    assert Budget(60, Clock(10.0)).left_seconds == pytest.approx(60 - 9 - 10)


def test_a_first_checkpoint_tells_how_long_saving_takes_at_the_end():
    budget = Budget(60, Clock(1.0))
    budget.saved(0.4)
    assert budget.left_seconds == pytest.approx(60 - 1.5 - 2.0 - 1)


def test_measured_evaluation_moves_the_end_but_never_turns_time_back():
    clock = Clock(0.0)
    budget = Budget(101.5, clock)
    budget.reserve(1000, 0, 0.02)
    budget.begin(0.0)
    assert share_at(budget, clock, 40.0) == pytest.approx(0.5)
    budget.judged(500, 5.0)
    assert budget.left_seconds == pytest.approx(50)
    assert budget.share == pytest.approx(0.5)
    assert share_at(budget, clock, 46.0) == pytest.approx(46 / 90)


def test_a_step_that_would_end_too_late_is_not_begun():
    clock = Clock(0.0)
    budget = Budget(61.5, clock)
    budget.begin(step_seconds=20.0)
    for end, over in ((20.0, False), (40.0, False), (55.0, True)):
        clock.now = end
        budget.step_done()
        assert budget.is_over() == over  # another 20 s, the longer of the last two
    assert not budget.is_over(0)


def test_validation_takes_at_most_a_tenth_of_the_time():
    budget = Budget(101.5, Clock(0.0))
    budget.reserve(tested=100, validation=1000, image_seconds=0.2)
    assert budget.validated == int(0.1 * (100 - 20) / 0.2) == 40
    # 8 s for the temperature, and twice 8 s for what tells unlike images
    assert budget.validation_seconds == pytest.approx(100 - 20 - 8 - 16)
    assert budget.left_seconds == pytest.approx(100 - 20 - 8 - 16 - 8)
    budget.reserve(tested=100, validation=10, image_seconds=0.2)
    assert budget.validated == 10


def test_the_temperature_is_fitted_on_what_there_is_still_time_for():
    clock = Clock(0.0)
    budget = Budget(101.5, clock)
    budget.reserve(tested=100, validation=40, image_seconds=0.2)  # 20 s and four times 8 s
    for now, images in ((56.0, 40), (57.1, 34), (63.9, 0), (90.0, 0)):
        clock.now = now
        assert budget.images_to_calibrate() == images
    for now, images in ((64.0, 40), (65.1, 37), (79.9, 0), (90.0, 0)):
        clock.now = now
        assert budget.images_to_compare() == images
    budget.reserve(tested=100, validation=1000, image_seconds=1.0)
    assert budget.images_to_calibrate() == budget.validated == 0
    budget.reserve(tested=0, validation=5000, image_seconds=1e-5)
    assert (budget.validated, budget.images_to_calibrate()) == (5000, 4096)


def test_trials_take_a_tenth_of_the_budget_in_all():
    clock = Clock(1.0)
    budget = Budget(60, clock)
    with budget.trying():
        clock.now += 2
    clock.now += 5
    with budget.trying():
        clock.now += 1
    assert budget.trial_seconds == pytest.approx(6 - 3)


def test_every_rank_decides_by_the_clock_of_the_first():
    clocks = Clock(2.0), Clock(30.0)
    readings = []
    first = Budget(60, clocks[0], lambda value: readings.append(value) or value)
    second = Budget(60, clocks[1], lambda value: readings.pop(0))
    for budget in (first, second):
        budget.reserve(100, 0, 0.1)
        budget.begin(1.0)
    for now in (10.0, 20.0, 47.6, 48.0):
        clocks[0].now = now
        for budget in (first, second):
            budget.step_done()
        assert (first.share, first.is_over()) == (second.share, second.is_over())
    assert first.is_over()


def test_a_resumed_run_continues_with_the_time_left():
    clock = Clock(1.0)
    budget = Budget(60, clock)
    budget.begin(0.0)
    budget.resume(20.0)
    assert budget.left_seconds == pytest.approx(60 - 1.5 - 21)
    assert budget.share == pytest.approx(20 / (20 + 37.5))


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
def test_a_run_ends_with_its_budget_and_a_low_learning_rate(bars, tmp_path, monkeypatch, schedule):
    clock = Clock(1.0)

    def ticking():
        clock.now += 0.02
        return clock.now

    monkeypatch.setattr(run_session, "Budget", lambda seconds, *rest: Budget(seconds, ticking))
    fields = {"model": "lenet", "batch_size": 16, "learning_rate": 0.01, "threads": 1}
    path = tmp_path / "run"
    run = train(bars, out=path, reporter=SilentReporter(), budget="8s", schedule=schedule, **fields)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) > 2
    assert rows[-1]["learning_rate"] < 0.01 * 0.02
    assert max(row["learning_rate"] for row in rows) > 0.005
    assert clock.now == pytest.approx(8 - 1.5, abs=0.2)  # closing the run makes no tick here
    assert run.results["accuracy"] is not None
    assert tomllib.loads((path / "config.toml").read_text())["budget"] == "8s"


@pytest.mark.soak
def test_ranks_with_different_clocks_make_the_same_steps(bars, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).with_name("budgeted.py")
    command = [sys.executable, *launcher, script, bars, tmp_path]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert 50 < first.pop("clock") <= 60
    second.pop("clock")
    assert first == second
    assert first["images"] > 96
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_an_evaluation_of_a_moment_does_not_make_others_seem_slow():
    budget = Budget(60.0, lambda: 0.0)
    budget.reserve(tested=10_000, validation=10, image_seconds=1e-4)
    before = budget.left_seconds
    budget.judged(10, 0.02)
    assert budget.left_seconds == before
    budget.judged(10, 2.0)
    assert budget.left_seconds < before - 1000
    budget.judged(10, 0.001)
    assert budget.left_seconds == pytest.approx(before)


def test_the_clock_of_a_run_that_is_started_again_has_run_on():
    budget = Budget(60.0, lambda: 20.0, runs_on=True)
    budget.resume(12.0)  # they are among the 20
    assert budget.now == 20.0
    part = budget.part(0.5, 0, 0)
    part.resume(5.0)
    assert budget.now == 20.0
