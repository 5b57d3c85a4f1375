"""Oracle: statistics computed in float64, batch by batch."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import onsight
from onsight.config import make_config
from onsight.data.loader import Images
from onsight.data.normalization import Normalization
from onsight.evaluation.predictions import BATCH_SIZE
from onsight.models.classifier import Classifier
from onsight.report.console import SilentReporter
from onsight.step import calibrate as recalibrate
from onsight.step.calibrate import count_recalibrated_steps, recalibrate_norms
from onsight.tensorfile import read_tensors

CPU = torch.device("cpu")
FAST = {"epochs": 2, "batch_size": 16, "threads": 1, "reporter": SilentReporter()}


def make_images(count):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 36), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(count), torch.zeros(count, dtype=torch.int64), (6, 6, 1))


def make_classifier():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm2d(3)
    )
    for norm in (net[1], net[4]):  # as if it had been trained
        norm.running_mean.fill_(3.0)
        norm.num_batches_tracked.fill_(50)
    return Classifier(net, Normalization((0.3,), (0.2,)), "fp32", CPU)


def by_hand(net, inputs):
    """Means and unbiased variances of both norms over the batches, all of equal weight."""
    found = []
    for part in inputs.double().split(BATCH_SIZE):
        maps = nn.functional.conv2d(part, net[0].weight, net[0].bias)
        row = []
        for norm in (net[1], net[4]):
            mean, variance = maps.mean((0, 2, 3)), maps.var((0, 2, 3), correction=0)
            row += [mean, maps.var((0, 2, 3), correction=1)]
            scale = (variance + norm.eps).rsqrt().view(1, 3, 1, 1)
            maps = ((maps - mean.view(1, 3, 1, 1)) * scale).relu()
        found.append(torch.stack(row))
    return torch.stack(found).mean(0)


@pytest.mark.parametrize(("count", "used"), [(600, 512), (100, 100)])
def test_statistics_equal_those_computed_in_float64(count, used):
    classifier, images = make_classifier(), make_images(count)
    classifier.net.double().register_forward_pre_hook(lambda net, inputs: inputs[0].double())
    ids = torch.arange(count)
    recalibrate_norms(classifier, images, ids)
    net = classifier.net
    inputs = classifier.normalization.apply(images.gather(ids[:used]).images)
    expected = by_hand(net, inputs)
    found = [net[1].running_mean, net[1].running_var, net[4].running_mean, net[4].running_var]
    assert torch.allclose(torch.stack(found), expected, rtol=1e-12, atol=1e-12)
    assert not any(module.training for module in net.modules())
    assert net[1].momentum == 0.1


def test_it_uses_only_the_first_training_images(monkeypatch):
    monkeypatch.setattr(recalibrate, "RECALIBRATION_IMAGES", 2 * BATCH_SIZE)
    found = []
    for count in (2 * BATCH_SIZE, 3 * BATCH_SIZE):
        classifier = make_classifier()
        recalibrate_norms(classifier, make_images(3 * BATCH_SIZE), torch.arange(count))
        found.append(classifier.net[1].running_mean)
    assert torch.equal(*found)


def test_nothing_changes_without_batch_norm_or_without_images():
    classifier = make_classifier()
    before = {name: value.clone() for name, value in classifier.net.state_dict().items()}
    recalibrate_norms(classifier, make_images(10), torch.arange(0))
    for name, value in classifier.net.state_dict().items():
        assert torch.equal(value, before[name])
    plain = Classifier(nn.Flatten(), classifier.normalization, "fp32", CPU)
    recalibrate_norms(plain, make_images(10), torch.arange(10))


def weights_of(run):
    return read_tensors(run.model)[0]


def validation_losses(run):
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["validation_loss"] for line in lines]


@pytest.mark.parametrize("fields", [{}, {"ema": 0.9}])
def test_a_run_evaluates_and_saves_the_new_statistics(bars, tmp_path, fields):
    with_it = onsight.train(bars, out=tmp_path / "a", **FAST | fields)
    without = onsight.train(bars, out=tmp_path / "b", recalibrate_norm="off", **FAST | fields)
    one, other = weights_of(with_it), weights_of(without)
    changed = {name for name in one if not torch.equal(one[name], other[name])}
    assert changed
    assert all(name.rpartition(".")[2].startswith(("running_", "num_")) for name in changed)
    again = onsight.evaluate(with_it.path, bars)
    assert again["loss"] == with_it.results["loss"] != without.results["loss"]
    assert np.isfinite(again["loss"])


def test_they_are_recomputed_only_while_they_lag_behind_the_weights(bars, tmp_path, monkeypatch):
    always = onsight.train(bars, out=tmp_path / "a", recalibrate_norm="on", **FAST)
    monkeypatch.setattr(recalibrate, "_LAGGING_STEPS", 7)  # an epoch has 6
    early = onsight.train(bars, out=tmp_path / "b", **FAST)
    first, second = zip(validation_losses(always), validation_losses(early), strict=True)
    assert first[0] == first[1]
    assert second[0] != second[1]


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({}, 200),
        ({"norm_statistics": "batch"}, 200),
        ({"norm_statistics": "frozen"}, 0),
        ({"freeze": True}, 0),
        ({"freeze": True, "recalibrate_norm": "on"}, 0),
        ({"norm_statistics": "frozen", "recalibrate_norm": "on"}, np.inf),
        ({"recalibrate_norm": "off"}, 0),
    ],
)
def test_frozen_statistics_stay_unless_asked(fields, steps):
    assert count_recalibrated_steps(make_config(fields), make_classifier().net) == steps
    assert count_recalibrated_steps(make_config(fields), nn.Flatten()) == 0


def test_a_frozen_backbone_keeps_its_own_statistics(bars, tmp_path):
    fields = {**FAST, "model": "test_resnet", "image_size": 16, "freeze": True, "plan": "default"}
    with_it = onsight.train(bars, out=tmp_path / "a", recalibrate_norm="on", **fields)
    without = onsight.train(bars, out=tmp_path / "b", **fields)
    one, other = weights_of(with_it), weights_of(without)
    assert all(torch.equal(one[name], other[name]) for name in one)
