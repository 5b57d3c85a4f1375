"""Planted classes that a plane separates, and that none does; the whole way to a prediction."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import onsight
from onsight.config import make_config
from onsight.deadline import Deadline
from onsight.errors import ModelError
from onsight.features import heads as fitted_heads
from onsight.features.choose_head import choose_head
from onsight.features.heads import HiddenSettings, LabelledFeatures
from onsight.models import head as heads
from onsight.models.build import build_model
from onsight.models.file import load_model_file, save_model
from onsight.report.console import SilentReporter
from onsight.training import fit_head, hidden_layer
from onsight.training.hidden_layer import (
    has_enough_images,
    is_clearly_better,
    try_hidden_layer,
)
from onsight.tune.work import expect_curve_seconds, expect_hidden_seconds, nominal_seconds


def task(count, seed, is_curved):
    """Points in 4 dimensions; the class is a quadrant's (curved), or the side of a plane."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, 4, generator=generator)
    score = points[:, 0] * points[:, 1] if is_curved else points[:, 0] + points[:, 1]
    score = score + 0.3 * torch.randn(count, generator=generator)
    return LabelledFeatures(points[None], (score > 0).long())


def tried(is_curved):
    train, validation = task(600, 0, is_curved), task(200, 1, is_curved)
    chosen = choose_head(train, validation, 2)
    return try_hidden_layer(chosen, chosen.settings.fit(train, 2), train, validation, None, 0)


def test_a_hidden_layer_is_kept_where_no_plane_separates_the_classes():
    chosen, head = tried(is_curved=True)
    assert isinstance(chosen.settings, HiddenSettings)
    validation = task(200, 1, is_curved=True)
    assert torch.equal(head(validation.views[0]), chosen.logits)
    assert chosen.correct > 150
    assert chosen.correct == int((chosen.logits.argmax(dim=1) == validation.labels).sum())


def test_the_linear_head_stays_where_a_plane_separates_the_classes():
    chosen, head = tried(is_curved=False)
    assert not isinstance(chosen.settings, HiddenSettings)
    assert not isinstance(head, nn.Module)


@pytest.mark.parametrize(
    ("train", "validation", "is_enough"),
    [(500, 100, True), (499, 100, False), (500, 99, False)],
)
def test_a_hidden_layer_is_tried_with_enough_images(train, validation, is_enough):
    assert has_enough_images(task(train, 0, True), task(validation, 1, True)) == is_enough


def test_a_hidden_layer_is_tried_if_there_is_time(patterns, tmp_path, monkeypatch):
    monkeypatch.setattr(hidden_layer, "MIN_HIDDEN_TRAINING", 1)
    monkeypatch.setattr(hidden_layer, "MIN_HIDDEN_VALIDATION", 1)
    monkeypatch.setattr("onsight.report.page.write_report", lambda run: run / "report.html")
    monkeypatch.setattr(fit_head, "expect_hidden_seconds", lambda *_: 100.5)
    monkeypatch.setattr(fit_head, "try_hidden_layer", None)  # fails if it is called
    monkeypatch.setattr(Deadline, "remaining", lambda self: 100.0)
    onsight.train(patterns, out=tmp_path / "run", freeze=True, **QUICK)


@pytest.mark.parametrize(
    ("fields", "images", "folds", "seconds"),
    [
        # With 513 images, an epoch has 3 steps, and 100 epochs have the 300 that are needed.
        ({}, 513, 1, 2 * 300 * 0.015),
        ({}, 7_680, 1, 2 * 600 * 0.015),  # 20 epochs of 30 steps: all of the 18 s there are
        ({}, 7_681, 1, math.inf),
        ({"effort": "quick"}, 513, 1, math.inf),
        ({"effort": "best"}, 513, 5, 2 * 300 * 0.015),
        ({}, 513, 5, math.inf),  # six trainings
        ({"budget": "89s"}, 513, 1, math.inf),
        ({"budget": "90s"}, 513, 1, 2 * 300 * 0.015),
    ],
)
def test_a_hidden_layer_is_a_small_part_of_the_time(fields, images, folds, seconds):
    trainings = folds + 1 if folds > 1 else 1
    expected = expect_hidden_seconds(
        images, trainings, nominal_seconds(make_config(fields), images)
    )
    assert expected == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("images", "fields", "seconds"),
    [
        # The 300 steps of each of four heads take 18 s: a twentieth of 360 s, but not of 180.
        (500, {}, math.inf),
        (500, {"budget": "359s"}, math.inf),
        (500, {"budget": "360s"}, 4 * 300 * 0.015),
        (500, {"effort": "best"}, 4 * 300 * 0.015),
    ],
)
def test_the_learning_curve_of_hidden_layers_is_a_small_part_of_the_time(images, fields, seconds):
    expected = expect_curve_seconds([images] * 4, nominal_seconds(make_config(fields), images))
    assert expected == pytest.approx(seconds)


def test_better_is_more_than_a_standard_error_and_not_fewer_right():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300,), generator=generator)
    usual = nn.functional.one_hot(labels, 3) * 1.5 + torch.randn(300, 3, generator=generator)
    better = usual + nn.functional.one_hot(labels, 3)
    assert is_clearly_better(better, usual, labels)
    assert not is_clearly_better(usual, better, labels)
    assert not is_clearly_better(usual, usual, labels)
    assert not is_clearly_better(3 * usual, usual, labels)  # only surer of the same
    hair = usual + 0.05 * torch.randn(300, 3, generator=generator)
    assert not is_clearly_better(hair, usual, labels)
    wrong = better.clone()
    right = (better.argmax(dim=1) == labels).nonzero()[:, 0]
    lost = right[: len(right) - int((usual.argmax(dim=1) == labels).sum()) + 1]
    wrong[lost, labels[lost]] = better[lost].topk(2).values[:, 1] - 1e-3
    assert not is_clearly_better(wrong, usual, labels)


class Body(nn.Module):
    """A user's network with its head somewhere inside."""

    def __init__(self):
        super().__init__()
        self.tail = nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, images):
        return self.tail(images)


def test_a_hidden_head_takes_the_place_of_the_linear_one():
    net = Body()
    head = heads.HiddenHead(5, 7, 3)
    heads.set_hidden_head(net, head)
    assert heads.find_head(net) is net.tail[3] is not head
    assert heads.hidden_units(net) == 7
    images = torch.randn(4, 8)
    with heads.capturing_features(net) as kept:
        logits = net(images)
    features = net.tail[2](net.tail[1](images))
    assert torch.equal(kept[0], features)
    by_hand = nn.functional.gelu(features @ head.first.weight.T + head.first.bias)
    assert torch.allclose(logits, by_hand @ head.last.weight.T + head.last.bias, atol=1e-6)
    with pytest.raises(ModelError):
        heads.set_hidden_head(nn.Linear(5, 3), head)


QUICK = {
    "model": "test_resnet",
    "image_size": 16,
    "threads": 1,
    "precision": "fp32",  # which some processors would not choose
    "reporter": SilentReporter(),
}


def draw_patterns(folder):
    draw = np.random.default_rng(0)
    for number in range(240):
        corners = draw.integers(0, 2, 2)
        pixels = draw.integers(90, 160, (16, 16)).astype(np.uint8)
        pixels[:8, :8] += np.uint8(90 * corners[0])
        pixels[8:, 8:] -= np.uint8(90 * corners[1])
        place = folder / ("alike" if corners[0] == corners[1] else "different")
        place.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(place / f"{number}.png")


@pytest.fixture(scope="module")
def patterns(build_once):
    """Grey images whose class says whether two corners are alike, which no plane separates."""
    return build_once("patterns", draw_patterns)


@pytest.fixture(scope="module")
def run(patterns, train_once):
    """A frozen run that keeps a head with a hidden layer, whatever it was worth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hidden_layer, "MIN_HIDDEN_TRAINING", 1)
        patch.setattr(hidden_layer, "MIN_HIDDEN_VALIDATION", 1)
        patch.setattr(fitted_heads, "_MIN_STEPS", 30)
        patch.setattr(hidden_layer, "is_clearly_better", lambda *logits: True)
        patch.setattr("onsight.report.page.write_report", lambda run: run / "report.html")
        settings = {name: value for name, value in QUICK.items() if name != "reporter"}
        return train_once("hidden-head", patterns, freeze=True, **settings)


def test_the_model_file_predicts_what_the_run_said(run, patterns):
    file = load_model_file(run.path)
    assert file.hidden_units == 512
    assert {"all_layers_head.first.weight", "all_layers_head.last.bias"} <= file.weights.keys()
    again = onsight.evaluate(run.path, patterns)
    assert again["confusion"] == run.results["confusion"]
    assert again["loss"] == run.results["loss"]
    (row,) = (json.loads(one) for one in (run.path / "metrics.jsonl").read_text().splitlines())
    assert row["epoch"] == 0
    assert run.results["parameters"] == sum(
        tensor.numel() for tensor in build_model(file).parameters()
    )


def test_features_are_those_of_the_backbone(run, patterns):
    predictor = onsight.load(run.path)
    paths = sorted(patterns.rglob("*.png"))[:5]
    features = torch.from_numpy(predictor.embed(paths))
    assert features.shape == (5, 96)
    head, inputs = predictor.classifier.net.all_layers_head, []
    with head.register_forward_pre_hook(lambda _, received: inputs.append(received[0])):
        expected = torch.from_numpy(predictor.predict_proba(paths))
    assert torch.equal(torch.cat(inputs)[:, :96], features)
    with torch.inference_mode():
        logits = head(torch.cat(inputs)) / predictor.classifier.temperature
    assert torch.allclose(logits.softmax(dim=1), expected, atol=1e-5)


def test_another_run_starts_from_its_backbone(run, patterns, tmp_path, monkeypatch):
    monkeypatch.setattr("onsight.report.page.write_report", lambda run: run / "report.html")
    again = onsight.train(
        patterns, out=tmp_path / "run", weights=str(run.path), epochs=1, batch_size=64, **QUICK
    )
    assert load_model_file(again.path).hidden_units == 0


@pytest.mark.parametrize("units", [-1, 10**9, "512", None])
def test_a_file_with_impossible_units_is_refused(run, tmp_path, units):
    file = load_model_file(run.path)
    object.__setattr__(file, "hidden_units", units)
    save_model(tmp_path / "model.safetensors", file)
    with pytest.raises(ModelError, match="hidden units"):
        load_model_file(tmp_path / "model.safetensors")


def test_units_that_do_not_fit_the_weights_are_named(run):
    file = load_model_file(run.path)
    object.__setattr__(file, "hidden_units", 8)
    with pytest.raises(ModelError, match=r"all_layers_head\.first\.weight is \(512, 496\)"):
        build_model(file)
