"""Heads on features: one ordinary model, fine-tuning that never ends worse, features kept."""

import csv
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import onsight
from onsight.data.cache import find_cache_folder
from onsight.deadline import Deadline
from onsight.evaluation import out_of_distribution
from onsight.features import choose_head
from onsight.features.choose_head import LearningCurvePoint
from onsight.features.feature_pass import compute_features
from onsight.features.heads import HeadSettings, compute_logits
from onsight.models.file import load_model_file
from onsight.ranks.world import World
from onsight.report.console import Reporter, SilentReporter
from onsight.report.sentences import accuracy_sentences
from onsight.tensorfile import read_tensors
from onsight.training import fit, fit_head, load_features, save_run
from onsight.training import folds as folding
from onsight.training.decisions import Decisions
from onsight.training.progress import Progress
from onsight.training.save_run import _describe_left_out

QUICK = {
    "model": "test_resnet",
    "image_size": 16,
    "threads": 1,
    "precision": "fp32",  # which some processors would not choose
    "reporter": SilentReporter(),
}


def rows_of(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def weights_of(run):
    return load_model_file(run.path).weights


@pytest.fixture(autouse=True)
def no_learning_curve(monkeypatch):
    """How more images would change the accuracy is not measured, unless a test asks for it."""
    monkeypatch.setattr(fit_head, "measure_learning_curve", lambda *_: [])


@pytest.fixture
def quick_choice(monkeypatch):
    """The penalty of a head is chosen with fewer iterations, where any will do."""
    monkeypatch.setattr(choose_head, "_ITERATIONS", 3)


def test_a_frozen_run_fits_a_head_and_trains_nothing_else(bars, tmp_path, capsys):
    settings = {**QUICK, "reporter": Reporter()}
    run = onsight.train(bars, out=tmp_path / "run", freeze=True, **settings)
    assert "n = " not in capsys.readouterr().err  # the accuracy is printed once, by the command
    (row,) = rows_of(run)
    assert row["epoch"] == 0
    assert run.results["epochs"] == 0
    assert run.accuracy > 0.7
    before = onsight.train(
        bars, out=tmp_path / "other", freeze=True, class_weights="balanced", **QUICK
    )
    pairs = zip(weights_of(run).items(), weights_of(before).values(), strict=True)
    changed = {name for (name, one), other in pairs if not torch.equal(one, other)}
    assert changed <= {"fc.weight", "fc.bias"}


@pytest.mark.usefixtures("quick_choice")
def test_the_model_file_predicts_what_the_run_said_and_kept_features_give_the_same_bits(
    bars, tmp_path, monkeypatch
):
    first = onsight.train(bars, out=tmp_path / "first", freeze=True, **QUICK)
    again = onsight.evaluate(first.path, bars)
    assert again["confusion"] == first.results["confusion"]
    assert again["loss"] == first.results["loss"]
    kept = sorted((find_cache_folder() / "features").iterdir())
    assert len(kept) == 4  # training and validation images, and the mirror images of both
    rows = {len(read_tensors(path)[0]["features"]) for path in kept}
    assert rows == {first.results["used"] - first.results["images"] - n for n in rows_left(first)}

    def compute(*args, **kwargs):
        raise AssertionError("features were computed again")

    monkeypatch.setattr("onsight.training.load_features.compute_features", compute)
    second = onsight.train(bars, out=tmp_path / "second", freeze=True, **QUICK)
    for name, tensor in weights_of(first).items():
        assert torch.equal(tensor, weights_of(second)[name])
    assert first.results["images_per_second"] > 0
    assert second.results["images_per_second"] is None
    assert rows_of(second)[0]["images_per_second"] is None


def rows_left(run):
    validation = rows_of(run)[0]["validation_images"]
    return validation, run.results["used"] - run.results["images"] - validation


@pytest.mark.usefixtures("quick_choice")
def test_without_mirroring_there_is_one_view(bars, tmp_path):
    onsight.train(bars, out=tmp_path / "run", freeze=True, flip=False, **QUICK)
    assert len(list((find_cache_folder() / "features").iterdir())) == 2


@pytest.fixture
def weights(backbone):
    return backbone.model


def test_fine_tuning_begins_with_a_fitted_head(bars, tmp_path, weights):
    run = onsight.train(
        bars, out=tmp_path / "run", weights=str(weights), epochs=1, batch_size=16, **QUICK
    )
    head, epoch = rows_of(run)
    assert (head["epoch"], epoch["epoch"]) == (0, 1)
    assert head["validation_accuracy"] > 0.6


def test_fine_tuning_never_ends_worse_than_its_head(bars, tmp_path, weights):
    fields = {"weights": str(weights), "epochs": 2, "batch_size": 16, "test_fraction": 0, **QUICK}
    ruined = onsight.train(bars, out=tmp_path / "ruined", learning_rate=3.0, **fields)
    head, *epochs = rows_of(ruined)
    assert all(row["validation_accuracy"] <= head["validation_accuracy"] for row in epochs)
    assert ruined.results["best_epoch"] == 0
    start, _ = read_tensors(ruined.path / "checkpoints" / "start.safetensors")
    backbone = load_model_file(weights).weights
    for name, tensor in weights_of(ruined).items():
        assert torch.equal(tensor, start[name])
        assert name.startswith("fc.") or torch.equal(tensor, backbone[name])


def test_layers_near_the_input_change_less(bars, tmp_path, weights):
    fields = {"weights": str(weights), "epochs": 1, "batch_size": 16, "layer_decay": 0.1, **QUICK}
    run = onsight.train(bars, out=tmp_path / "run", learning_rate=1e-3, **fields)
    assert run.results["best_epoch"] in (0, 1)
    checkpoint, _ = read_tensors(run.path / "checkpoints" / "last.safetensors")
    start = load_model_file(weights).weights
    moved = {
        name: float((checkpoint[f"model.{name}"] - start[name]).abs().mean())
        for name in ("conv1.0.weight", "layer4.0.conv1.weight")
    }
    assert moved["conv1.0.weight"] < 0.1 * moved["layer4.0.conv1.weight"]
    statistics = [name for name in start if "running" in name]
    assert statistics
    assert all(torch.equal(checkpoint[f"model.{name}"], start[name]) for name in statistics)


@pytest.mark.usefixtures("quick_choice")
def test_folds_compute_each_image_once(bars, tmp_path, monkeypatch):
    from onsight.training import load_features

    computed, real = [], load_features.compute_features

    def compute(classifier, batches, view, *rest, **options):
        batches = list(batches)
        computed.extend((view, number) for batch in batches for number in batch.ids.tolist())
        return real(classifier, iter(batches), view, *rest, **options)

    monkeypatch.setattr(load_features, "compute_features", compute)
    fields = {"freeze": True, "folds": 3, "normalize": "half", **QUICK}
    run = onsight.train(bars, out=tmp_path / "run", **fields)
    assert run.results["images"] == 120
    assert len(computed) == len(set(computed))
    assert np.bincount([number for view, number in computed if view == "plain"]).max() == 1


@pytest.fixture
def fits(monkeypatch):
    """The images, and the head, of every head that is fitted after the choice of its penalty."""
    noted, real = [], HeadSettings.fit

    def fit(self, data, *rest):
        noted.append((data, real(self, data, *rest)))
        return noted[-1][1]

    monkeypatch.setattr(HeadSettings, "fit", fit)
    return noted


def test_the_kept_head_learns_from_validation_images_once_they_have_judged(
    bars, tmp_path, fits, monkeypatch
):
    calibrated, real = [], fit.calibrate_temperature

    def calibrate_temperature(classifier, held_out, *rest):
        calibrated.append(held_out.logits)
        return real(classifier, held_out, *rest)

    monkeypatch.setattr(fit, "calibrate_temperature", calibrate_temperature)
    run = onsight.train(bars, out=tmp_path / "run", freeze=True, **QUICK)
    (alone, judged), (every, kept) = fits
    (row,) = rows_of(run)
    validation = every.take(torch.arange(len(alone), len(every)))
    assert len(validation) == row["validation_images"] > 5
    right = compute_logits(judged, validation.views[0]).argmax(dim=1) == validation.labels
    assert row["validation_accuracy"] == float(right.double().mean())
    assert len(every.views) == len(alone.views) == 2
    assert torch.equal(every.views[:, : len(alone)], alone.views)
    assert run.results["fitted"] == len(every) == run.results["used"] - run.results["images"]
    assert torch.equal(weights_of(run)["all_layers_head.weight"], kept.weight)
    assert not torch.equal(judged.weight, kept.weight)
    assert torch.equal(calibrated[0], compute_logits(judged, validation.views[0]))


@pytest.mark.usefixtures("quick_choice")
def test_a_run_judged_by_validation_images_never_learns_from_them(bars, tmp_path, fits):
    run = onsight.train(bars, out=tmp_path / "run", freeze=True, test_fraction=0, **QUICK)
    ((_, head),) = fits
    assert run.results["split"] == "validation"
    assert torch.equal(weights_of(run)["all_layers_head.weight"], head.weight)
    assert "fitted" not in run.results


def test_fine_tuning_keeps_validation_images_for_its_epochs(bars, tmp_path, fits, weights):
    fits.clear()
    onsight.train(bars, out=tmp_path / "run", weights=str(weights), epochs=1, **QUICK)
    assert len(fits) == 1


@pytest.mark.usefixtures("quick_choice")
def test_the_models_of_folds_learn_from_validation_images_too(bars, tmp_path, fits):
    fields = {"freeze": True, "folds": 3, **QUICK}
    run = onsight.train(bars, out=tmp_path / "run", **fields)
    counts = [len(data) for data, _ in fits]
    assert counts[1::2] == [80, 80, 80, 120]
    assert run.results["fitted"] == 120


@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize(("seconds", "heads"), [(10.0, 2), (50.0, 1)])
def test_a_head_is_not_fitted_again_without_the_time(
    bars, tmp_path, fits, monkeypatch, seconds, heads
):
    monkeypatch.setattr(Deadline, "remaining", lambda self: 100.0 - seconds * len(fits))
    onsight.train(bars, out=tmp_path / "run", freeze=True, **QUICK)
    assert len(fits) == heads


@pytest.mark.usefixtures("quick_choice")
def test_a_frozen_run_says_what_more_images_would_bring(bars, tmp_path, monkeypatch):
    law = [
        LearningCurvePoint(n, round(2000 * (1 - 0.8 * n**-0.3)), 2000) for n in (20, 40, 80, 160)
    ]
    monkeypatch.setattr(fit_head, "measure_learning_curve", lambda *_: law)
    real = save_run.fit_learning_curve  # would see that no errors are left
    monkeypatch.setattr(save_run, "fit_learning_curve", lambda points, _: real(points, 0.8))
    run = onsight.train(bars, out=tmp_path / "run", freeze=True, **QUICK)
    curve = run.results["learning_curve"]
    assert [point["train_images"] for point in curve["points"]] == [20, 40, 80, 160]
    assert abs(curve["exponent"] - 0.3) < 0.05


@pytest.mark.usefixtures("quick_choice")
def test_a_record_with_more_mirrored_than_plain_features_uses_as_many_of_both(
    bars, tmp_path, fits, monkeypatch
):
    recorded = {"plain training features": 30, "mirrored training features": 40}
    real = Decisions.decide
    monkeypatch.setattr(
        Decisions, "decide", lambda self, name, *rest: recorded.get(name) or real(self, name, *rest)
    )
    onsight.train(bars, out=tmp_path / "run", freeze=True, **QUICK)
    ((data, _),) = fits
    assert data.views.shape[:2] == (2, 30)
    assert len(data.labels) == 30


class Lines(SilentReporter):
    """Collects the lines of a run."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)


@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize("folds", [pytest.param("1", marks=pytest.mark.soak), "3"])
def test_a_frozen_run_says_once_which_settings_have_no_effect(bars, tmp_path, fits, folds):
    reporter = Lines()
    given = {"jitter": 0.2, "epochs": 3, "mixup": 0.0, "flip": False, "class_weights": "none"}
    fields = {**QUICK, **given, "folds": folds, "normalize": "half", "reporter": reporter}
    onsight.train(bars, out=tmp_path / "run", freeze=True, **fields)
    (line,) = (line for line in reporter.lines if "no effect" in line)
    assert "--epochs and --jitter have no effect" in line


@pytest.mark.usefixtures("quick_choice")
def test_a_frozen_run_without_such_settings_says_nothing(bars, tmp_path, fits):
    reporter = Lines()
    fields = {**QUICK, "reporter": reporter}
    run = onsight.train(bars, out=tmp_path / "run", freeze=True, **fields)
    again = run.path / "config.toml"
    onsight.train(bars, out=tmp_path / "again", config_file=again, reporter=reporter)
    assert not [line for line in reporter.lines if "no effect" in line]


@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize("folds", [1, 3])
def test_images_left_out_for_lack_of_time_are_stated(bars, tmp_path, monkeypatch, capsys, folds):
    load = load_features.FeatureLoader._load_in_time

    def load_some(self, name, *rest):
        return load(self, name, *rest)[: 40 if name.endswith("training features") else None]

    monkeypatch.setattr(load_features.FeatureLoader, "_load_in_time", load_some)
    fields = {**QUICK, "freeze": True, "folds": folds, "reporter": Reporter()}
    run = onsight.train(bars, out=tmp_path / "run", **fields)
    total = sum(row["train_images"] for row in run.results["classes"])
    stated = f"fitted on 40 of {total} training images"
    assert stated in " ".join(capsys.readouterr().err.split())
    assert run.results["left_out"] == total - 40
    assert any(stated in note for note in run.results["notes"])
    if folds > 1:
        assert any(note.startswith("3 of 3 cross-validated") for note in run.results["notes"])
        sentences = accuracy_sentences(run.results)
        assert "trained on only some of these 120 images" in " ".join(sentences)


def test_each_image_passes_through_a_frozen_network_once_however_many_folds(
    bars, tmp_path, monkeypatch, weights
):
    fields = {**QUICK, "freeze": True, "folds": 3, "flip": False, "cache_folder": "none"}
    fields["weights"] = str(weights)
    counts = []

    def count(*args, **named):
        features = compute_features(*args, **named)
        counts.append(len(features))
        return features

    reserved = []
    monkeypatch.setattr(folding, "reserve_heads", lambda _, trainings: reserved.append(trainings))
    monkeypatch.setattr(load_features, "compute_features", count)
    monkeypatch.setattr(out_of_distribution, "_MIN_IMAGES", 5)
    run = onsight.train(bars, out=tmp_path / "run", **fields)
    assert sum(counts) == run.results["images"] == 120
    assert run.results["images_per_second"]  # although the final head finds all features computed
    assert reserved == [4, 3, 2, 1]  # heads that are still to be fitted
    monkeypatch.setattr(folding, "evaluate_head", lambda *_: None)  # a forward pass of each fold
    again = onsight.train(bars, out=tmp_path / "again", **fields)
    ours, theirs = (
        list(csv.DictReader((each.path / "predictions.csv").read_text().splitlines()))
        for each in (run, again)
    )
    assert [row["predicted"] for row in ours] == [row["predicted"] for row in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert float(mine["probability"]) == pytest.approx(float(other["probability"]), abs=1e-3)
    thresholds = [each.results["out_of_distribution"]["threshold"] for each in (run, again)]
    assert thresholds[0] == pytest.approx(thresholds[1], abs=1e-3)


@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize(("normalize", "is_complete"), [("half", True), ("dataset", False)])
def test_folds_learn_from_all_images_if_features_of_all_are_needed_anyway(
    bars, tmp_path, monkeypatch, normalize, is_complete
):
    def compute_some(classifier, batches, view, advance, deadline, **options):
        features = compute_features(classifier, batches, view, advance, **options)
        return features if deadline == math.inf else features[:40]

    monkeypatch.setattr(load_features, "compute_features", compute_some)
    monkeypatch.setattr(load_features.FeatureLoader, "left_seconds", lambda self: 1e-9)
    fields = {**QUICK, "freeze": True, "folds": 3, "flip": False, "normalize": normalize}
    run = onsight.train(bars, out=tmp_path / "run", **fields)
    assert {not fold["left_out"] for fold in run.results["fold_results"]} == {is_complete}


@pytest.mark.parametrize(("name", "stated"), [("head", "the head"), ("vgg", "the head of vgg")])
def test_the_note_names_the_head(name, stated):
    member = SimpleNamespace(
        name=name,
        trained=SimpleNamespace(left_out=60, progress=Progress(rows=[{}])),
        dataset=SimpleNamespace(ids=lambda split: range(100)),
    )
    (note,) = _describe_left_out(SimpleNamespace(members=[member]), [])
    assert note.startswith(f"{stated} was fitted on 40 of 100 training images")


class SecondOfTwo(World):
    """The second rank, told that the first has got through three images."""

    rank, size = 1, 2

    def gather(self, name, line):
        return ["3", line]

    def broadcast(self, name, make):
        return "3"


@pytest.mark.parametrize("budget", [math.inf, 7.0])
def test_all_ranks_compute_until_the_same_moment_and_use_as_many_images(budget):
    passes = []

    def compute(ids, view, deadline=math.inf):
        passes.append((len(ids), deadline))
        return ids[:5]

    world = SecondOfTwo()
    decisions = Decisions(world=world, is_timed=True)
    loader = SimpleNamespace(compute=compute, job=SimpleNamespace(world=world, decisions=decisions))
    ask = "training features", torch.arange(9), "plain", budget
    assert len(load_features.FeatureLoader._load_in_time(loader, *ask)) == 3
    load_features.FeatureLoader._load_in_time(loader, *ask)  # now on record
    assert passes == [(9, budget), (3, math.inf)]
