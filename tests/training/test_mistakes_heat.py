"""Heat of mistakes at the end of a run. Oracle: the heat of the same images, computed alone."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from prepared import CPU, make_prepared
from torch import nn

from onsight.data.index import TEST
from onsight.deadline import Deadline
from onsight.evaluation.predictions import PredictionTable
from onsight.heatmaps.heat import heat_maps
from onsight.heatmaps.overlay import enlarge, overlay
from onsight.models.classifier import Classifier
from onsight.report.gallery import Lookalikes, MistakesHeat, save_gallery
from onsight.step.build import make_net
from onsight.training import mistakes as mistakes_heat
from onsight.training.mistakes import find_heat

pytest.importorskip("captum")


@pytest.fixture
def prepared(bars):
    config, data = make_prepared(bars, test_fraction=0.2)
    return data, Classifier(
        make_net(config, data.dataset, CPU, None), data.normalization, "fp32", CPU
    )


def all_wrong(dataset):
    """Every test image as a mistake, the last one the worst."""
    ids = dataset.ids(TEST).numpy()
    labels = dataset.pack.index.labels[ids].astype(np.int64)
    losses = np.arange(len(ids), dtype=np.float32)
    none, untold = np.zeros(len(ids), bool), np.full(len(ids), np.nan, np.float32)
    logits = np.zeros((len(ids), 2), np.float32)
    return PredictionTable(ids, labels, 1 - labels, losses, losses, none, losses, untold, logits)


def heat_of(data, classifier, wrong):
    """Without a limit on the time but that of every run."""
    return find_heat(data.dataset, classifier, wrong, Deadline(), 0.0)


def test_it_is_that_of_the_predicted_class_and_the_worst_comes_first(prepared):
    data, classifier = prepared
    wrong = all_wrong(data.dataset)
    found = heat_of(data, classifier, wrong)
    images = data.images.gather(torch.from_numpy(wrong.ids[::-1].copy())).images
    expected = heat_maps(classifier, images, torch.from_numpy(wrong.predicted[::-1].copy()))
    assert found.reason == ""
    assert len(found.heats) == min(40, len(wrong))
    assert np.allclose(found.heats, expected[:40], atol=1e-5)


@pytest.mark.parametrize(
    ("most_seconds", "left_seconds", "image_seconds"),
    [(-1.0, math.inf, 0.0), (1e9, -0.1, 1e-6), (1e9, 90.0, 1.0)],
)
def test_without_time_there_is_none_and_that_is_said(
    prepared, monkeypatch, most_seconds, left_seconds, image_seconds
):
    monkeypatch.setattr(mistakes_heat, "_HEAT_SECONDS", most_seconds)
    data, classifier = prepared
    wrong = all_wrong(data.dataset)
    found = find_heat(data.dataset, classifier, wrong, Deadline(left_seconds), image_seconds)
    assert len(found.heats) == 0
    assert "no time" in found.reason


def test_without_a_budget_there_is_time_for_slow_maps(prepared):
    data, classifier = prepared
    wrong = all_wrong(data.dataset)
    batch_seconds = 10.0
    image_seconds = batch_seconds / mistakes_heat._MAX_HEAT_COST / mistakes_heat._HEAT_BATCH_SIZE
    hurried = find_heat(data.dataset, classifier, wrong, Deadline(3600.0), image_seconds)
    found = find_heat(data.dataset, classifier, wrong, Deadline(), image_seconds)
    assert (len(hurried.heats), len(found.heats)) == (0, min(40, len(wrong)))


def test_a_net_without_maps_has_none_and_that_is_said(prepared):
    data, _ = prepared
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 2))
    classifier = Classifier(net, data.normalization, "fp32", CPU)
    found = heat_of(data, classifier, all_wrong(data.dataset))
    assert len(found.heats) == 0
    assert "has no convolution" in found.reason


def test_without_captum_there_is_none_and_that_is_said(prepared, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    data, classifier = prepared
    found = heat_of(data, classifier, all_wrong(data.dataset))
    assert len(found.heats) == 0
    assert "[heatmaps]" in found.reason


def test_without_mistakes_nothing_is_missing(prepared):
    data, classifier = prepared
    wrong = all_wrong(data.dataset)
    right = replace(wrong, predicted=wrong.labels)
    assert heat_of(data, classifier, right).reason == ""


def test_the_gallery_keeps_it_drawn_over_the_image(prepared, tmp_path):
    data, classifier = prepared
    wrong, pack = all_wrong(data.dataset), data.dataset.pack
    nothing = Lookalikes(np.zeros((0, 3), np.int64), np.zeros((0, 3), np.float32), 0, 0)
    heat = heat_of(data, classifier, wrong).heats[:2]
    save_gallery(tmp_path, wrong, pack, nothing, MistakesHeat(heat, "too slow"))
    gallery = json.loads((tmp_path / "gallery.json").read_text())
    assert gallery["heat"] == {"drawn": 2, "of": len(gallery["wrong"]), "reason": "too slow"}
    files = [item.get("heat_file") for item in gallery["wrong"]]
    assert files[:3] == ["heat-00.png", "heat-01.png", None]
    pixels = pack.pixels[pack.rows[wrong.ids[-2]]]
    with Image.open(tmp_path / "heat-01.png") as image:
        assert np.array_equal(np.asarray(image), overlay(*enlarge(pixels, heat[1], 160)))
