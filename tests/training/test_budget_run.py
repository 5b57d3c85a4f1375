"""Whole runs under a budget, by a fake clock; oracle: arithmetic with seconds per image."""

import json
import tomllib

import pytest
from slow import make_slow

from onsight.data import packing, split
from onsight.errors import BudgetTooSmall
from onsight.report.console import Reporter, SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import members, open_data, pacers
from onsight.training.run import train

FIELDS = {"image_size": "32", "threads": 1, "residency": "map"}
CLOSING = 1.5  # seconds reserved where starting and saving take none


@pytest.fixture(autouse=True)
def never_stagnant(monkeypatch):
    """These images are soon learned, and seconds of epochs are not those of the fake clock."""
    monkeypatch.setattr(pacers, "_STAGNANT_FRACTION", 1000.0)


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
    [(0.005, 15), (0.05, 20), (0.2, 60), (0.5, 60), (0.9, 100)],
)
def test_a_run_ends_in_time_however_slow_its_steps(
    bars, tmp_path, monkeypatch, step_seconds, budget
):
    clock, net = make_slow(monkeypatch, step_seconds, 0.3 * step_seconds)
    run = run_slow(bars, tmp_path, clock, net, budget, batch_size=8)
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
    run_slow(bars, tmp_path, clock, net, 60, Reporter(verbose=True))
    begun = next(now for now, text in told if text.startswith("budget: 60 s"))
    assert 0 < begun <= 6
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["measured"]["reason"].startswith("not measured: it would take more than")


def test_an_epoch_that_cannot_be_finished_is_evaluated_and_kept(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 0.4, 0.1)
    run = run_slow(bars, tmp_path, clock, net, 40, batch_size=32)
    (row,) = rows_of(run)
    assert row["validation_images"] > 0
    assert run.results["best_epoch"] == 1
    assert run.results["images"] == 12
    assert clock.now <= 40 - CLOSING


def test_without_time_for_validation_the_last_weights_are_the_model(bars, tmp_path, monkeypatch):
    clock, net = make_slow(monkeypatch, 0.05, 0.5)
    told = []
    monkeypatch.setattr(Reporter, "say", lambda self, text: told.append(text))
    run = run_slow(bars, tmp_path, clock, net, 22, Reporter(), batch_size=8)
    row = rows_of(run)[-1]
    assert (row["validation_images"], row["validation_accuracy"]) == (0, None)
    assert run.results["best_epoch"] == run.results["epochs"]
    assert "budget: no time for validation: the last weights will be the model" in told


def test_a_late_first_step_is_not_made_and_there_is_still_a_model(
    bars, tmp_path, monkeypatch, capsys
):
    clock, net = make_slow(monkeypatch, 0.2, 0.01)
    real = members._save_start

    def save_slowly(*arguments):
        clock.now += 24.0
        real(*arguments)

    monkeypatch.setattr(members, "_save_start", save_slowly)
    run = run_slow(bars, tmp_path, clock, net, 30, Reporter(), batch_size=8)
    assert "before the first training step" in capsys.readouterr().err
    assert run.model.exists()
    assert (run.results["epochs"], run.results["images"]) == (0, 12)


def slow_down_decoding(monkeypatch, clock, seconds):
    """Let the clock move on by some seconds while images are decoded."""
    real = open_data.open_dataset

    def open_slowly(*arguments):
        clock.now += seconds
        return real(*arguments)

    monkeypatch.setattr(open_data, "open_dataset", open_slowly)


def test_a_budget_without_time_to_train_is_refused_and_twice_the_time_is_enough(
    bars, tmp_path, monkeypatch
):
    clock, net = make_slow(monkeypatch, 0.01, 0.01)
    slow_down_decoding(monkeypatch, clock, 12.0)
    with pytest.raises(BudgetTooSmall) as caught:
        run_slow(bars, tmp_path, clock, net, 9)
    assert str(caught.value) == (
        "--budget 9s is too short: 12.0 s are spent, 12.0 s of them on decoding images, and "
        "training, evaluation and saving need at least 1.5 s; try --budget 27s"
    )
    assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()  # the advice works for the same folder
    clock.now = 0.0
    run = run_slow(bars, tmp_path / "run", clock, net, 27)
    assert run.results["epochs"] >= 1
    assert clock.now <= 27


def test_a_run_that_was_extended_says_by_how_much(bars, tmp_path, monkeypatch, capsys):
    clock, net = make_slow(monkeypatch, 0.01, 0.01)
    slow_down_decoding(monkeypatch, clock, 8.0)
    run = run_slow(bars, tmp_path / "run", clock, net, 9, Reporter())
    said = capsys.readouterr().err
    assert "budget: 8.0 s are spent before training, so the run will take about 10.4 s" in said
    assert run.results["epochs"] >= 1
    assert 8 < clock.now <= 10.4


def slow_down_each_image(monkeypatch, clock, seconds):
    """Let the clock move on by some seconds while an image is decoded."""
    real = packing.prepare_image

    def decode_slowly(*arguments):
        clock.now += seconds
        return real(*arguments)

    monkeypatch.setattr(packing, "prepare_image", decode_slowly)


@pytest.mark.parametrize(("image_seconds", "folds"), [(0.01, 5), (0.2, 1)])
def test_without_time_to_decode_all_images_there_are_no_folds(
    bars, tmp_path, monkeypatch, image_seconds, folds
):
    clock, net = make_slow(monkeypatch, 0.005, 0.001)
    slow_down_each_image(monkeypatch, clock, image_seconds)
    monkeypatch.setattr(split, "ENOUGH_TEST_IMAGES", 200)  # the suite's is smaller
    run = run_slow(bars, tmp_path, clock, net, 30, folds="auto")
    assert run.results["used"] == (120 if folds > 1 else 50)
    saved = tomllib.loads((run.path / "config.toml").read_text())
    assert saved["folds"] == str(folds)
    assert clock.now <= 30


def test_decoding_ends_in_time_and_the_run_repeats_with_the_same_images(
    bars, tmp_path, monkeypatch, capsys
):
    clock, net = make_slow(monkeypatch, 0.05, 0.01)
    slow_down_each_image(monkeypatch, clock, 0.2)
    run = run_slow(bars, tmp_path, clock, net, 30, Reporter())
    # 35% of the 28.5 s: the image of the 50th 0.2 s is begun in time.
    assert run.results["used"] == 50
    warning = "budget: there was time to decode 50 images, drawn at random; the other 70"
    assert warning in capsys.readouterr().err
    saved = tomllib.loads((run.path / "config.toml").read_text())
    assert saved["train_images"] == 50
    problems = (run.path / "problems.csv").read_text()
    assert problems.count("no time to decode it") == 70
    clock.now = 0.0
    again = train(bars, out=tmp_path / "again", config_file=run.path / "config.toml", model=net)
    keys = [read_tensors(each.model)[1]["provenance"]["data_key"] for each in (run, again)]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("is_told", [True, False])
def test_a_budget_that_is_not_used_up_says_why(bars, tmp_path, monkeypatch, capsys, is_told):
    clock, net = make_slow(monkeypatch, 0.05, 0.01)
    monkeypatch.setattr(pacers.DeadlinePacer, "_is_stagnant", lambda *_: is_told)
    run = run_slow(bars, tmp_path, clock, net, 60, Reporter())
    assert ("s are not used: Slow" in capsys.readouterr().err) is is_told
    plan = json.loads((run.path / "plan.json").read_text())
    assert ("unused_seconds" in plan) is is_told
    if is_told:
        assert plan["unused_seconds"]["value"] == pytest.approx(60 - clock.now, abs=CLOSING)
