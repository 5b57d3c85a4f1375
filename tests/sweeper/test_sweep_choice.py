"""The winner is chosen by validation images alone, and compared on test images."""

import json

import numpy as np
import pytest

from onsight.sweeper.plan import PlannedRun
from onsight.sweeper.result import SweptRun, choose_winner, read_run


def swept(name, validation, accuracy, loss=1.0, images=500):
    return SweptRun(name, name, {}, validation, loss, images, accuracy, 0.0, 1.0, 500, 1.0)


def test_the_test_images_choose_nothing():
    runs = [swept("a", 0.80, 0.99), swept("b", 0.81, 0.50), swept("c", None, 1.0)]
    assert choose_winner(runs).name == "b"


def test_equal_runs_are_told_apart_by_their_validation_loss():
    runs = [swept("a", 0.8, 0.8, 0.7), swept("b", 0.8, 0.8, 0.6), swept("c", 0.8, 0.8, None)]
    assert choose_winner(runs).name == "b"


def test_a_few_images_that_are_all_right_are_worth_less_than_many_that_mostly_are():
    runs = [swept("slow", 1.0, 0.9, images=8), swept("fast", 0.95, 0.9), swept("none", None, 0.9)]
    assert choose_winner(runs).name == "fast"
    assert choose_winner([swept("no", 0.0, 0.1, images=8), swept("none", None, 0.9)]).name == "no"


def test_the_winners_test_accuracy_is_not_flattered_but_its_validation_accuracy_is():
    # 6 runs of which each is right with probability 0.8, whatever they try.
    rng = np.random.default_rng(3)
    right = rng.binomial(500, 0.8, (2000, 2, 6)) / 500
    winners = [
        choose_winner([swept(str(n), *pair) for n, pair in enumerate(zip(*both, strict=True))])
        for both in right.tolist()
    ]
    validated = np.mean([winner.validation_accuracy for winner in winners])
    tested = np.mean([winner.accuracy for winner in winners])
    spread = np.sqrt(0.8 * 0.2 / 500)
    best_of_six = 0.8 + 1.267 * spread  # the mean of the largest of 6 normal numbers
    assert validated == pytest.approx(best_of_six, abs=0.002)
    assert tested == pytest.approx(0.8, abs=4 * spread / np.sqrt(2000))


def test_a_runs_validation_accuracy_is_that_of_the_epoch_it_kept(tmp_path, trained):
    found = read_run(PlannedRun(trained.path, {}, {}))
    rows = [json.loads(row) for row in (trained.path / "metrics.jsonl").read_text().splitlines()]
    kept = rows[trained.results["best_epoch"] - 1]
    assert found.validation_accuracy == kept["validation_accuracy"]
    assert found.validation_images == kept["validation_images"] == 12
    assert found.accuracy == trained.accuracy
    unknown = {k: v for k, v in trained.results.items() if not k.startswith("validation_")}
    (tmp_path / "results.json").write_text(json.dumps(unknown))
    assert read_run(PlannedRun(tmp_path, {}, {})).validation_accuracy is None
