"""A run that starts from the weights of another: its network, and images that are no longer new."""

import csv
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import onsight
from onsight.errors import ConfigError
from onsight.models.file import load_model_file, save_model
from onsight.report.console import Reporter, SilentReporter

QUICK = {"epochs": 1, "batch_size": 16, "threads": 1, "reporter": SilentReporter()}


def held_out_paths(run):
    with (run.path / "predictions.csv").open(newline="") as file:
        return {row["path"] for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def first(shared_bars, train_once):
    """A run of Sprint that held out a tenth of the images; do not modify its folder."""
    fields = {"model": "sprint", "folds": 1, "test_fraction": 0.1, "report": False}
    fields |= {name: value for name, value in QUICK.items() if name != "reporter"}
    return train_once("held-out-tenth", shared_bars, **fields)


@pytest.mark.parametrize("fraction", [0.1, 0.4])
def test_test_images_that_the_first_run_has_learned_from_are_counted(
    first, bars, tmp_path, capsys, fraction
):
    fields = {"weights": str(first.path), "folds": 1, "test_fraction": fraction}
    quick = QUICK | {"reporter": Reporter()}
    run = onsight.train(bars, out=tmp_path / "run", **fields, **quick)
    tested = held_out_paths(run)
    count = len(tested - held_out_paths(first))
    assert (count > 0) == (fraction > 0.1)
    notes = [note for note in run.results["notes"] if "too high" in note]
    assert len(notes) == (count > 0)
    if count:
        start = f"{count} of {len(tested)} images to evaluate on have trained or selected"
        assert notes[0].startswith(start)
        assert " ".join(notes[0].split()) in " ".join(capsys.readouterr().err.split())


def test_all_images_of_a_cross_validation_count(first, bars, tmp_path):
    fields = {"weights": str(first.path), "folds": 2}
    run = onsight.train(bars, out=tmp_path / "run", **fields, **QUICK)
    (note,) = (note for note in run.results["notes"] if "too high" in note)
    found = re.match(r"(\d+) of (\d+) images", note)
    assert found
    images, held_out = run.results["images"], len(held_out_paths(first))
    assert [int(text) for text in found.groups()] == [images - held_out, images]


def test_what_the_first_run_has_learned_from_is_not_forgotten(first, bars, tmp_path):
    fields = {"folds": 1, "test_fraction": 0.4, **QUICK}
    second = onsight.train(bars, out=tmp_path / "second", weights=str(first.path), **fields)
    found = onsight.evaluate(second.path, bars, reporter=SilentReporter())
    assert found["images"] == len(held_out_paths(first) & held_out_paths(second))
    third = onsight.train(bars, out=tmp_path / "third", weights=str(second.path), **fields)
    tested = held_out_paths(third)
    (note,) = (note for note in third.results["notes"] if "too high" in note)
    assert note.startswith(f"{len(tested - held_out_paths(first))} of {len(tested)} images")


def test_validation_images_count_where_the_run_is_evaluated_on_them(first, bars, tmp_path):
    fields = {"weights": str(first.path), "folds": 1, "test_fraction": 0, **QUICK}
    run = onsight.train(bars, out=tmp_path / "run", validation_fraction=0.3, **fields)
    validated = held_out_paths(run)
    (note,) = (note for note in run.results["notes"] if "too high" in note)
    assert note.startswith(f"{len(validated - held_out_paths(first))} of {len(validated)} images")


def test_images_are_found_again_where_they_are_decoded_for_another_size(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (400, 400, 3), np.uint8)).save(path)
    fields = {"folds": 1, "test_fraction": 0.4, **QUICK}
    data = tmp_path / "data"
    first = onsight.train(data, out=tmp_path / "1", model="sprint", image_size="96", **fields)
    weights = str(first.path)
    run = onsight.train(data, out=tmp_path / "2", weights=weights, image_size="64", **fields)
    tested = held_out_paths(run)
    learned = tested - held_out_paths(first)
    assert learned
    (note,) = (note for note in run.results["notes"] if "too high" in note)
    assert note.startswith(f"{len(learned)} of {len(tested)} images to evaluate on have trained")
    found = onsight.evaluate(run.path, data, reporter=SilentReporter())
    assert found["images"] == len(tested) - len(learned)


def test_the_network_is_that_of_the_weights(first, bars, tmp_path):
    run = onsight.train(bars, out=tmp_path / "run", weights=str(first.path), folds=1, **QUICK)
    assert run.results["model"] == "sprint"
    plan = json.loads((run.path / "plan.json").read_text())
    assert plan["layer_decay"]["value"] == 1.0  # Sprint's layers have no order that timm knows


def test_a_network_of_code_must_be_named(first, bars, tmp_path):
    file = replace(load_model_file(first.path), model="mine.nets:Net")
    save_model(tmp_path / "model.safetensors", file)
    with pytest.raises(ConfigError, match="name it with --model mine.nets:Net"):
        onsight.train(
            bars, out=tmp_path / "run", weights=str(tmp_path / "model.safetensors"), **QUICK
        )
