"""Oracles: plain runs with the same images in the same split, digests, and Wilson's formula."""

import csv
import json
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import onsight
from onsight.data.index import SPLIT_NAMES, TEST
from onsight.errors import ConfigError, DataError, Interrupted
from onsight.evaluation.statistics import wilson
from onsight.ranks import world
from onsight.report.console import SilentReporter
from onsight.tensorfile import read_tensors
from onsight.training import folds as folding

SMALL = {"model": "lenet", "image_size": "16", "batch_size": 16, "threads": 1, "epochs": 2}
FOLDS = {**SMALL, "folds": 3}


def train(data, out, **fields):
    return onsight.train(data, out=out, reporter=SilentReporter(), **fields)


def predictions(run):
    return list(csv.DictReader((run.path / "predictions.csv").read_text().splitlines()))


def weights(run):
    return read_tensors(run.model)[0]


def assert_equal(tensors, others):
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)


def note_trainings(patch):
    """The list in which the planned run of each fold that is trained will be noted."""
    noted = []
    real = folding.fit

    def fit(planned, *rest):
        noted.append(planned)
        return real(planned, *rest)

    patch.setattr(folding, "fit", fit)
    return noted


@pytest.fixture(scope="module")
def folded(shared_bars, tmp_path_factory):
    """A run in folds, with the datasets that its folds were trained on; nobody changes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onsight.report.page.write_report", lambda run: run / "report.html")
        seen = note_trainings(patch)
        run = train(shared_bars, tmp_path_factory.mktemp("folded") / "run", **FOLDS)
    return run, seen


def test_every_image_is_judged_once(folded, shared_bars):
    run, _ = folded
    rows = predictions(run)
    paths = {path.relative_to(shared_bars).as_posix() for path in shared_bars.rglob("*.png")}
    assert sorted(row["path"] for row in rows) == sorted(paths)
    results = run.results
    assert (results["split"], results["folds"], results["images"]) == ("folds", 3, 120)
    assert np.sum(results["confusion"]) == sum(row["images"] for row in results["classes"]) == 120
    right = sum(row["label"] == row["predicted"] for row in rows)
    assert results["accuracy"] == right / 120
    assert (results["accuracy_low"], results["accuracy_high"]) == wilson(
        right, 120, 1.959963984540054 * 2.5**0.5
    )
    for fold in results["fold_results"]:
        mine = [row for row in rows if row["fold"] == str(fold["fold"])]
        hits = sum(row["label"] == row["predicted"] for row in mine)
        assert (fold["images"], fold["accuracy"]) == (len(mine), hits / len(mine))
        assert (fold["accuracy_low"], fold["accuracy_high"]) == wilson(hits, len(mine))


def test_a_fold_is_judged_as_a_plain_run_on_that_split_would_judge_it(
    folded, shared_bars, tmp_path
):
    run, seen = folded
    dataset = seen[1].dataset
    lines = ["path,label,split"]
    for path, split in zip(dataset.pack.index.locators, dataset.splits, strict=True):
        lines.append(f"{shared_bars / path},{path.split('/')[0]},{SPLIT_NAMES[split]}")
    (tmp_path / "split.csv").write_text("\n".join(lines))
    plain = train(tmp_path / "split.csv", tmp_path / "plain", **SMALL)
    assert plain.results["split"] == "test"
    expected = [(row["predicted"], row["probability"]) for row in predictions(plain)]
    mine = [row for row in predictions(run) if row["fold"] == "2"]
    assert [(row["predicted"], row["probability"]) for row in mine] == expected
    assert len(expected) == 40


def test_the_model_that_is_kept_is_trained_on_all_images(folded, shared_bars, tmp_path):
    run, _ = folded
    whole = train(shared_bars, tmp_path / "whole", **SMALL, test_fraction=0, folds=1)
    assert_equal(weights(run), weights(whole))
    assert (
        sum(row["train_images"] + row["validation_images"] for row in run.results["classes"]) == 120
    )
    with pytest.raises(DataError, match="every image of .* was used to train"):
        onsight.evaluate(run.path, shared_bars)


def test_no_copy_of_a_judged_image_is_trained_on(bars, tmp_path, monkeypatch):
    for path in list(bars.rglob("*.png"))[::2]:
        Image.open(path).save(path.with_name(f"copy-{path.name}"))
    seen = note_trainings(monkeypatch)
    run = train(bars, tmp_path / "run", **FOLDS | {"epochs": 1})
    assert run.results["images"] == 180
    for planned in seen:
        splits = planned.dataset.splits
        names = [digest.tobytes() for digest in planned.dataset.pack.digests]
        judged = {name for name, split in zip(names, splits, strict=True) if split == TEST}
        learned = {name for name, split in zip(names, splits, strict=True) if split != TEST}
        assert not judged & learned
        assert len(judged) == 40
        assert planned.data.normalization.mean != seen[0].data.normalization.mean or (
            planned is seen[0]
        )


class StopAfter:
    """A stop request that is made after the given number of steps."""

    signal_number = signal.SIGTERM

    def __init__(self, steps):
        self.steps = steps

    def __bool__(self):
        self.steps -= 1
        return self.steps <= 0


OTHER_STOPS = [pytest.param(stop_at, marks=pytest.mark.soak) for stop_at in (1, 8, 24)]


@pytest.mark.parametrize("stop_at", [13, 35, *OTHER_STOPS])
def test_a_stopped_run_resumes_to_the_same_bits(
    folded, shared_bars, tmp_path, monkeypatch, stop_at
):
    whole, _ = folded
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(world, "StopRequest", lambda: StopAfter(stop_at))
        with pytest.raises(Interrupted, match=f"--out {out} --resume") as stopped:
            train(shared_bars, out, **FOLDS)
    finished = len(list(out.glob("folds/*/evaluation.safetensors")))
    start = f"fold {finished + 1} of 3: stopped " if finished < 3 else "stopped "
    assert str(stopped.value).startswith(start)
    trained = note_trainings(monkeypatch)
    again = train(shared_bars, out, resume=True)
    assert len(trained) == 3 - finished
    assert_equal(weights(again), weights(whole))
    assert predictions(again) == predictions(whole)
    assert again.results["confusion"] == whole.results["confusion"]
    for mine, theirs in zip(
        again.results["fold_results"], whole.results["fold_results"], strict=True
    ):
        assert mine | {"seconds": 0} == theirs | {"seconds": 0}
    assert not list(out.glob("folds/*/checkpoints"))


def test_changed_images_are_noticed_when_a_run_resumes(folded, bars, tmp_path):
    out = shutil.copytree(folded[0].path, tmp_path / "run")
    Image.new("L", (12, 12), 9).save(bars / "across" / "new.png")
    with pytest.raises(DataError, match="the images changed"):
        train(bars, out, resume=True)


def test_a_network_in_memory_is_trained_once_and_on_all_images(bars, tmp_path):
    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(144, 2))

    fields = {**SMALL, "image_size": "auto"}
    one, two = make(), make()
    run = train(bars, tmp_path / "folds", **fields | {"model": one, "folds": 2})
    train(bars, tmp_path / "whole", **fields | {"model": two, "test_fraction": 0, "folds": 1})
    assert_equal(one.state_dict(), two.state_dict())
    assert run.results["images"] == 120


def test_a_fold_repeats_its_own_decisions(bars, tmp_path):
    fields = FOLDS | {"tta": "flip"}
    plain = train(bars, tmp_path / "plain", **fields)
    assert plain.results["tta_images"] == 120
    decision = {"decision": "accumulate from epoch 0, step 2", "value": 3}
    (plain.path / "decisions.jsonl").write_text(json.dumps({"decision": "none", "value": 0}))
    (plain.path / "folds" / "2" / "decisions.jsonl").write_text(json.dumps(decision))
    halved = train(bars, tmp_path / "halved", config_file=plain.path / "config.toml")
    assert_equal(weights(plain), weights(halved))
    for fold in "123":
        ours, theirs = (
            read_tensors(run.path / "folds" / fold / "evaluation.safetensors")[0]["one.logits"]
            for run in (plain, halved)
        )
        assert ours.equal(theirs) is (fold != "2")


def test_folds_are_refused_before_anything_is_trained(bars, tmp_path):
    for path in sorted((bars / "down").glob("*.png"))[4:]:
        path.unlink()
    with pytest.raises(ConfigError, match="'down' has 4: use --folds 4"):
        train(bars, tmp_path / "run", **SMALL, folds=5)
    assert not (tmp_path / "run").exists()


def test_results_are_plain_json(folded):
    results = json.loads((folded[0].path / "results.json").read_text())
    assert [row["fold"] for row in results["fold_results"]] == [1, 2, 3]
