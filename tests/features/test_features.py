"""Features are what the head is given: the head of features is the network's own output."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from onsight.data.fit import ImageFormat
from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization
from onsight.errors import ModelError
from onsight.features import feature_pass
from onsight.features.feature_pass import (
    FeatureStore,
    compute_features,
    features_key,
    logits_and_features,
)
from onsight.models.classifier import Classifier

CPU = torch.device("cpu")
FORMAT = ImageFormat(8, 8, 1)


def classifier_of(*layers):
    return Classifier(nn.Sequential(*layers), Normalization((0.5,), (0.5,), (8, 8)), "fp32", CPU)


def usual():
    torch.manual_seed(0)
    return classifier_of(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 4),
    )


def make_images(count):
    pixels = torch.randint(0, 256, (count, 64), dtype=torch.uint8)
    return Images(pixels, torch.arange(count), torch.zeros(count).long(), (8, 8, 1))


def test_the_head_of_the_features_is_the_output():
    classifier, images = usual(), make_images(5).gather(torch.arange(5)).images
    logits, features = logits_and_features(classifier, images)
    assert features.shape == (5, 6)
    assert torch.equal(logits, classifier(images))
    with torch.inference_mode():
        assert torch.equal(classifier.net[-1](features), logits)


@pytest.mark.parametrize("batch_size", [2, 5, 64])
def test_features_are_in_order_whatever_the_batches(batch_size):
    source, ids = make_images(11), torch.tensor([4, 2, 9, 0, 1, 10, 3])
    found = compute_features(usual(), Loader(source, ids, batch_size, CPU).in_order())
    expected = logits_and_features(usual(), source.gather(ids).images)[1]
    assert torch.allclose(found, expected, atol=1e-6)


SQUEEZE = (nn.Flatten(), nn.Linear(64, 7), nn.ReLU(), nn.Unflatten(1, (7, 1, 1)))
WITHOUT_A_HEAD = {
    "no linear layer": (nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    "one in the middle": (*SQUEEZE, nn.Conv2d(7, 4, 1), nn.Flatten()),
    "one for each pixel": (nn.Flatten(2), nn.Linear(64, 4), nn.Flatten()),
}


@pytest.mark.parametrize("layers", WITHOUT_A_HEAD.values(), ids=WITHOUT_A_HEAD)
def test_a_network_without_a_head_is_refused(layers):
    images = make_images(2).gather(torch.arange(2)).images
    with pytest.raises(ModelError, match="does not end in a linear layer"):
        logits_and_features(classifier_of(*layers), images)


def test_the_key_is_of_everything_but_the_head():
    digests = torch.zeros(3, 16, dtype=torch.uint8)
    key = features_key(usual(), FORMAT, digests)
    headless = usual()
    nn.init.zeros_(headless.net[-1].weight)
    assert features_key(headless, FORMAT, digests) == key
    other = usual()
    other.net[1].running_mean += 1
    cropped = ImageFormat(8, 8, 1, fit="crop")
    keys = {
        key,
        features_key(other, FORMAT, digests),
        features_key(usual(), cropped, digests),
        features_key(usual(), FORMAT, digests + 1),
        features_key(usual(), FORMAT, digests, "mirrored"),
    }
    assert len(keys) == 5


def never():
    raise AssertionError("computed again")


def test_the_key_covers_what_computes_them(monkeypatch):
    digests = torch.zeros(3, 16, dtype=torch.uint8)
    key = features_key(usual(), FORMAT, digests)
    for place, name, value in (
        (torch, "__version__", "1.0"),
        (torch, "get_num_threads", lambda: 7),
        (torch.backends.cpu, "get_cpu_capability", lambda: "another"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            assert features_key(usual(), FORMAT, digests) != key


def test_features_are_kept_and_incomplete_ones_are_not(tmp_path):
    store, features = FeatureStore(tmp_path), torch.rand(3, 2)
    assert store.find("a") is None
    store.get("a", lambda: features[:2], 3)
    assert store.find("a") is None
    assert torch.equal(store.get("a", lambda: features, 3), features)
    assert torch.equal(store.get("a", never, 3), features)
    next(tmp_path.glob("features/*")).write_bytes(b"damaged")
    assert store.find("a") is None


def test_features_in_a_read_only_folder_are_found(tmp_path, monkeypatch):
    store, features = FeatureStore(tmp_path), torch.rand(3, 2)
    store.get("a", lambda: features, 3)

    def refuse(path):
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "touch", refuse)
    assert torch.equal(store.get("a", never, 3), features)


def test_those_not_used_for_longest_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_pass, "_MAX_CACHE_BYTES", 3000)
    store, features = FeatureStore(tmp_path), torch.rand(100, 2)  # 800 bytes and a header
    for age, name in enumerate("abc"):
        store.get(name, lambda: features, 100)
        os.utime(tmp_path / "features" / f"{name}.safetensors", (age, age))
    assert store.find("a") is not None  # used: now the youngest
    store.get("d", lambda: features, 100)
    left = {path.stem for path in tmp_path.glob("features/*")}
    assert {"a", "d"} <= left
    assert "b" not in left


def test_without_a_cache_nothing_is_kept():
    assert FeatureStore(None).find("a") is None
    assert len(FeatureStore(None).get("a", lambda: torch.rand(3, 2), 3)) == 3
