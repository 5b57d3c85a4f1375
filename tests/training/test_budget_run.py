"""Whole runs under a budget, by a fake clock; oracle: arithmetic with seconds per image."""

import json
import tomllib

import pytest
from slow import make_slow

from onsight.errors import BudgetTooSmall
from onsight.report.console import Reporter, SilentReporter
from onsight.training import open_data
from onsight.training.run import train

FIELDS = {"image_size": "32", "threads": 1, "residency": "map"}
CLOSING = 1.5  # seconds reserved where starting and saving take none


def run_slow(bars, folder, clock, net, budget, reporter=None, **fields):
    return train(
        bars,
        out=folder / "run",
        model=net,
        budget=f"{budget}s",
        spent=clock,
        reporter=reporter or SilentReporter(),
        **FIELDS,
        **fields,
    )


def rows_of(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("step_seconds", "budget"),
    [(0.002, 20), (0.05, 20), (0.2, 60), (0.5, 60), (0.9, 100)],
)
def test_a_run_ends_in_time_however_slow_its_steps(
    bars, tmp_path, monkeypatch, step_seconds, budget
):
    clock, net = make_slow(monkeypatch, step_seconds, 0.3 * step_seconds)
    run = run_slow(bars, tmp_path, clock, net, budget)
    size = tomllib.loads((run.path / "config.toml").read_text())["batch_size"]
    left = budget - CLOSING - clock.now
    assert 0 <= left < 2.2 * size * step_seconds  # no room for the next step, nor a second one
    assert run.model.exists()
    assert run.results["images"] == 12
    assert run.results["epochs"] == len(rows_of(run)) >= 1


def test_plan_and_trials_take_a_tenth_of_the_budget(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 0.2, 0.05)
    told = []
    monkeypatch.setattr(Reporter, "say", lambda self, text: told.append((clock.now, text)))
    run_slow(bars, tmp_path, clock, net, 60, Reporter())
    begun = next(now for now, text in told if text.startswith("budget: 60 s"))
    assert 0 < begun <= 6
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["measured"]["reason"].startswith("not measured: it would take more than")


def test_a_batch_that_allows_too_few_steps_is_made_smaller(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 0.1, 0.01)
    run = run_slow(bars, tmp_path, clock, net, 60)
    saved = tomllib.loads((run.path / "config.toml").read_text())
    plan = json.loads((run.path / "plan.json").read_text())["batch_size"]
    # About 56 s for training: 30 steps of 16 images take 48 s, of 32 they would take 96 s.
    assert saved["batch_size"] == plan["value"] == 16
    assert plan["reason"] == "about 34 steps fit into the budget; with 128 only 4"

    clock, net = make_slow(monkeypatch, 0.1, 0.01)
    asked = run_slow(bars, tmp_path / "asked", clock, net, 60, batch_size=64)
    plan = json.loads((asked.path / "plan.json").read_text())["batch_size"]
    assert (plan["value"], plan["reason"]) == (64, "set by you")


def test_an_epoch_that_cannot_be_finished_is_evaluated_and_kept(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 0.4, 0.1)
    run = run_slow(bars, tmp_path, clock, net, 40)
    (row,) = rows_of(run)
    assert row["validation_images"] > 0
    assert run.results["best_epoch"] == 1
    assert run.results["images"] == 12
    assert clock.now <= 40 - CLOSING


def test_without_time_for_validation_the_last_weights_are_the_model(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 0.05, 0.5)
    told = []
    monkeypatch.setattr(Reporter, "say", lambda self, text: told.append(text))
    run = run_slow(bars, tmp_path, clock, net, 22, Reporter())
    row = rows_of(run)[-1]
    assert (row["validation_images"], row["validation_accuracy"]) == (0, None)
    assert run.results["best_epoch"] == run.results["epochs"]
    assert "budget: no time for validation: the last weights will be the model" in told


def test_a_late_first_step_is_not_made_and_there_is_still_a_model(
    bars, tmp_path, monkeypatch, capsys
):
    clock, net = make_slow(monkeypatch, 0.2, 0.01)
    real = open_data.open_dataset

    def slow_disk(*arguments):
        clock.now += 27.0
        return real(*arguments)

    monkeypatch.setattr(open_data, "open_dataset", slow_disk)
    run = run_slow(bars, tmp_path, clock, net, 30, Reporter())
    assert "before the first training step" in capsys.readouterr().err
    assert run.model.exists()
    assert (run.results["epochs"], run.results["images"]) == (0, 12)


def test_too_small_a_budget_is_refused_before_decoding(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 1.0, 0.5)
    monkeypatch.setattr(open_data, "open_dataset", None)
    with pytest.raises(BudgetTooSmall) as caught:
        run_slow(bars, tmp_path, clock, net, 20)
    # Its trial forward passes of 2 images take 1 s each; 4 steps of 8 images 32 s, 12 tested
    # images 6 s, saving and closing 1.5 s; more is what measuring took.
    assert "--budget 20s is too short for slow:Slow at 32x32 on 120 images" in str(caught.value)
    least = int(str(caught.value).partition("at least about ")[2].split()[0])
    assert 1.1 * (32 + 6 + 1.5) < least < 1.1 * (32 + 6 + 1.5 + 40)
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_the_least_budget_that_is_named_is_enough(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 1.0, 0.5)
    with pytest.raises(BudgetTooSmall) as caught:
        run_slow(bars, tmp_path, clock, net, 20)
    least = int(str(caught.value).partition("at least about ")[2].split()[0])
    clock.now = 0.0
    run = run_slow(bars, tmp_path, clock, net, least)
    assert run.results["epochs"] == 1
    assert clock.now <= least
