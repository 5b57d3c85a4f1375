"""Oracles: a fake clock for the budget, made-up paces for what fits into it."""

import json
import tomllib

import pytest
from prepared import make_prepared

from onsight.config import make_config
from onsight.data.index import TEST, TRAIN, VALIDATION
from onsight.errors import ConfigError
from onsight.report.console import SilentReporter
from onsight.training import run_session
from onsight.training.autotune import fit_epochs as fitting
from onsight.training.autotune.fit_epochs import fit_epochs
from onsight.training.budget import Budget, read_budget
from onsight.training.pictures.fit_size import Pace
from onsight.training.run import train


class Clock:
    """Seconds spent, set by the test."""

    def __init__(self, now=2.0):
        self.now = now

    def __call__(self):
        return self.now


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
    budget.begin(pictures=1000, picture_seconds=0.004)
    assert budget.left_seconds == pytest.approx(60 - 1.5 - 4 - 10)
    assert budget.share == 0
    clock.now = 10 + 44.5 / 2
    assert budget.share == pytest.approx(0.5)
    clock.now = 54.5
    assert budget.share == pytest.approx(1)


def test_closing_takes_half_as_long_as_starting():
    assert Budget(60, Clock(10.0)).left_seconds == pytest.approx(60 - 5 - 10)


def test_measured_evaluation_moves_the_end_but_never_turns_time_back():
    clock = Clock(0.0)
    budget = Budget(101.5, clock)
    budget.begin(1000, 0.02)
    clock.now = 40.0
    assert budget.share == pytest.approx(0.5)
    budget.judged(500, 5.0)
    assert budget.left_seconds == pytest.approx(50)
    assert budget.share == pytest.approx(0.5)
    clock.now = 46.0
    assert budget.share == pytest.approx(46 / 90)


def test_a_resumed_run_continues_with_the_time_left():
    clock = Clock(1.0)
    budget = Budget(60, clock)
    budget.begin(0, 0.0)
    budget.resume(20.0)
    assert budget.left_seconds == pytest.approx(60 - 1.5 - 21)
    assert budget.share == pytest.approx(20 / (20 + 37.5))


def test_larger_pictures_are_chosen_only_with_enough_time():
    pace = Pace(decode_seconds=0.001, train_seconds=0.001)
    assert pace.epochs(64, 1000, 11) == pytest.approx(10)
    assert pace.epochs(128, 1000, 41) == pytest.approx(10)
    sides = [pace.side(1000, seconds) for seconds in (0.5, 2, 3.5, 6, 60, 200)]
    assert sides == [32, 32, 48, 64, 96, 128]


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine"])
def test_a_run_ends_with_its_budget_and_a_low_learning_rate(bars, tmp_path, monkeypatch, schedule):
    clock = Clock(1.0)

    def ticking():
        clock.now += 0.01
        return clock.now

    monkeypatch.setattr(run_session, "Budget", lambda seconds, spent: Budget(seconds, ticking))
    fields = {"model": "lenet", "image_size": "32", "batch_size": 16, "learning_rate": 0.01}
    path = tmp_path / "run"
    run = train(bars, out=path, reporter=SilentReporter(), budget="8s", schedule=schedule, **fields)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) > 2
    assert rows[-1]["learning_rate"] < 0.01 * 0.02
    assert max(row["learning_rate"] for row in rows) > 0.005
    assert clock.now == pytest.approx(8 - 1.5, abs=0.2)  # closing the run makes no tick here
    assert run.results["accuracy"] is not None
    assert tomllib.loads((path / "config.toml").read_text())["budget"] == "8s"


def test_every_view_of_a_test_picture_counts_towards_the_budget(bars):
    left = {}
    for views in ("one", "flip-shift"):
        config, prepared = make_prepared(
            bars, model="lenet", image_size="32", learning_rate=0.01, threads=1, precision="fp32",
            tta=views,
        )  # fmt: skip
        budget = Budget(60, Clock())
        fit_epochs(budget, config, prepared, SilentReporter())
        left[views] = budget.pictures
    tested = len(prepared.dataset.ids(TEST))
    assert left["flip-shift"] - left["one"] == 6 * tested


def test_epochs_count_their_training_and_their_validation(bars, monkeypatch):
    monkeypatch.setattr(fitting, "mean_seconds", lambda work: 16 * 0.01)
    monkeypatch.setattr(fitting, "_judging_seconds", lambda trial: 0.05)
    fields = {"model": "lenet", "image_size": "32", "learning_rate": 0.01, "batch_size": 16}
    config, prepared = make_prepared(bars, threads=1, precision="fp32", **fields)
    train, validation, test = (
        len(prepared.dataset.ids(split)) for split in (TRAIN, VALIDATION, TEST)
    )
    fitted = fit_epochs(Budget(60, Clock()), config, prepared, SilentReporter())
    left = 60 - 2 - 1.5 - 0.05 * (validation + test)
    assert validation > 5
    assert fitted.epochs == round(left / (0.01 * train + 0.05 * validation))


def test_several_ranks_are_refused(bars, tmp_path):
    with pytest.raises(ConfigError, match="one process"):
        train(bars, out=tmp_path / "run", reporter=SilentReporter(), budget="5m", ranks=2)
