"""Lookalikes of mistakes. Oracle: scikit-learn's cosine distances of the same features."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from prepared import CPU, make_prepared
from sklearn.neighbors import NearestNeighbors
from torch import nn

import onsight
from onsight.data.index import TEST, TRAIN
from onsight.deadline import Deadline
from onsight.evaluation.predictions import PredictionTable
from onsight.features.feature_pass import logits_and_features
from onsight.models.classifier import Classifier
from onsight.report.console import SilentReporter
from onsight.report.gallery import Lookalikes, MistakesHeat, save_gallery
from onsight.step.build import make_net
from onsight.training import mistakes as lookalikes
from onsight.training import save_run
from onsight.training.mistakes import find_lookalikes


@pytest.fixture
def prepared(bars):
    return make_prepared(bars, test_fraction=0.2)


def classifier_of(config, data, net=None):
    net = net or make_net(config, data.dataset, CPU, None)
    return Classifier(net, data.normalization, "fp32", CPU)


def all_wrong(dataset, split=TEST):
    """Every image of a split as a mistake, the last one the worst."""
    ids = dataset.ids(split).numpy()
    labels = dataset.pack.index.labels[ids].astype(np.int64)
    losses = np.arange(len(ids), dtype=np.float32)
    no_top5 = np.zeros(len(ids), bool)
    logits = np.zeros((len(ids), 2), np.float32)
    return PredictionTable(ids, labels, 1 - labels, losses, losses, no_top5, losses, losses, logits)


def search(config, data, classifier, wrong):
    """Without a limit on the time but that of every search."""
    return find_lookalikes(config, data.dataset, classifier, wrong, Deadline(), 0.0)


def features_of(classifier, data, ids):
    return logits_and_features(classifier, data.images.gather(torch.as_tensor(ids)).images)[
        1
    ].numpy()


def expected(classifier, data, queries, among):
    features = features_of(classifier, data, among).astype(np.float64)
    centre = features.mean(0)
    search = NearestNeighbors(n_neighbors=3, metric="cosine").fit(features - centre)
    distances, rows = search.kneighbors(features_of(classifier, data, queries) - centre)
    return among[rows], 1 - distances


def test_the_nearest_training_images_are_found(prepared):
    config, data = prepared
    classifier, wrong = classifier_of(config, data), all_wrong(data.dataset)
    found = search(config, data, classifier, wrong)
    train = data.dataset.ids(TRAIN).numpy()
    images, similarities = expected(classifier, data, wrong.ids[::-1].copy(), train)
    assert np.array_equal(found.images, images[:40])
    assert np.allclose(found.similarities, similarities[:40], atol=1e-4)
    assert (found.searched, found.of, found.reason) == (len(train), len(train), "")


def test_of_many_training_images_a_sample_is_searched(prepared, monkeypatch):
    monkeypatch.setattr(lookalikes, "_SAMPLE_SIZE", 20)
    monkeypatch.setattr(lookalikes, "_MIN_SAMPLE_SIZE", 20)
    config, data = prepared
    train = data.dataset.ids(TRAIN).numpy()
    found = search(config, data, classifier_of(config, data), all_wrong(data.dataset))
    assert (found.searched, found.of) == (20, len(train))
    assert set(found.images.ravel()) <= set(train[:20])


def test_features_that_a_frozen_run_has_cached_are_all_searched(bars, tmp_path, monkeypatch):
    calls = []

    def find(config, dataset, classifier, per_image, *rest):
        found = find_lookalikes(config, dataset, classifier, all_wrong(dataset), *rest)
        calls.append((dataset, classifier, found))
        return Lookalikes(found.images[:0], found.similarities[:0], 0, 0)

    monkeypatch.setattr(save_run, "find_lookalikes", find)
    monkeypatch.setattr(lookalikes, "_SAMPLE_SIZE", 20)
    fields = {"model": "test_resnet", "image_size": 16, "precision": "fp32"}
    onsight.train(bars, out=tmp_path / "run", freeze=True, reporter=SilentReporter(), **fields)
    ((dataset, classifier, found),) = calls
    train = dataset.ids(TRAIN).numpy()
    assert (found.searched, found.of) == (len(train), len(train))
    worst = all_wrong(dataset).ids[::-1].copy()
    images, similarities = expected(classifier, dataset, worst, train)
    assert np.allclose(found.similarities, similarities, atol=1e-3)
    assert (found.images == images).mean() > 0.9  # features are rounded


def test_no_mistake_is_its_own_lookalike(prepared):
    """With folds, mistakes are training images."""
    config, data = prepared
    wrong = all_wrong(data.dataset, TRAIN)
    found = search(config, data, classifier_of(config, data), wrong)
    assert found.of == len(wrong) - 40
    assert not set(found.images.ravel()) & set(wrong.ids[-40:])


@pytest.mark.parametrize(
    ("most_seconds", "left_seconds", "image_seconds"),
    [(-1.0, math.inf, 0.0), (1e9, -0.1, 1e-6), (1e9, 90.0, 90 / 23)],
)
def test_without_time_nothing_is_searched_and_that_is_said(
    prepared, monkeypatch, most_seconds, left_seconds, image_seconds
):
    monkeypatch.setattr(lookalikes, "_SEARCH_SECONDS", most_seconds)
    config, data = prepared
    wrong = all_wrong(data.dataset)
    found = find_lookalikes(
        config,
        data.dataset,
        classifier_of(config, data),
        wrong,
        Deadline(left_seconds),
        image_seconds,
    )
    assert (len(found.images), found.searched) == (0, 0)
    assert "no time" in found.reason


def test_a_network_without_a_head_has_no_lookalikes(prepared):
    config, data = prepared
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    classifier = classifier_of(config, data, net)
    found = search(config, data, classifier, all_wrong(data.dataset))
    assert found.searched == 0
    assert "does not end in a linear layer" in found.reason


def test_the_gallery_keeps_them_side_by_side(prepared, tmp_path):
    config, data = prepared
    wrong, pack = all_wrong(data.dataset), data.dataset.pack
    found = search(config, data, classifier_of(config, data), wrong)
    no_heat = MistakesHeat(np.zeros((0, 12, 12), np.float32))
    save_gallery(tmp_path, wrong, pack, found, no_heat)
    gallery = json.loads((tmp_path / "gallery.json").read_text())
    assert gallery["lookalikes"] == {"searched": found.of, "of": found.of, "reason": ""}
    assert [item["path"] for item in gallery["wrong"]] == [
        pack.index.locators[image] for image in wrong.ids[::-1]
    ]
    item, images = gallery["wrong"][1], found.images[1]
    assert [near["path"] for near in item["near"]] == [pack.index.locators[p] for p in images]
    assert all(near["path"].startswith(near["label"]) for near in item["near"])
    with Image.open(tmp_path / item["near_file"]) as opened:
        strip = np.asarray(opened)
    for column, image in enumerate(images):
        left = column * 14 + 1
        assert np.array_equal(strip[:, left : left + 12], pack.pixels[pack.rows[image], :, :, 0])
