"""Everything goes to the given device: meta tensors stand in for those of a GPU."""

import types
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from onsight.config import make_config
from onsight.data.loader import Images, Loader
from onsight.data.normalization import Normalization
from onsight.models import classifier as classifier_module
from onsight.models.classifier import Classifier
from onsight.ranks.world import World
from onsight.step.build import make_net, make_step
from onsight.tune.training_data import place_images

GIVEN = torch.device("meta")


@pytest.fixture
def dataset():
    pixels = torch.zeros(12, 16 * 16, dtype=torch.uint8)
    images = Images(pixels, torch.arange(12), torch.arange(12) % 3, (16, 16, 1))
    return types.SimpleNamespace(
        images=images,
        input_shape=(1, 16, 16),
        classes=["a", "b", "c"],
        counts=lambda split: np.array([4, 4, 4]),
    )


def test_model_loss_and_data_go_to_the_given_device(dataset):
    config = make_config(
        {"model": "lenet", "class_weights": "balanced", "learning_rate": 0.1, "ema": 0.9}
    )
    net = make_net(config, dataset, GIVEN)
    step = make_step(config.model_copy(update={"precision": "fp32"}), net, dataset, GIVEN, World())
    tensors = [*net.state_dict().values(), *step.loss.state_dict().values(), *step.loss.buffers()]
    assert len(tensors) > len(net.state_dict())
    assert {tensor.device for tensor in tensors} == {GIVEN}
    images = place_images(dataset.images, "device", GIVEN)
    assert {t.device for t in (images.pixels, images.rows, images.labels)} == {GIVEN}


@pytest.mark.parametrize("mixes", [False, True])
def test_batches_from_the_memory_map_go_to_the_given_device(dataset, mixes):
    loader = Loader(dataset.images, torch.arange(12), 5, GIVEN, 1, 2, with_next=mixes)
    batches = [*loader.epoch(0, 0), *loader.in_order()]
    assert len(batches) == 4
    assert {tensor.device for batch in batches for tensor in batch[:4]} == {GIVEN}


def test_evaluation_computes_on_the_given_device(dataset, monkeypatch):
    monkeypatch.setattr(classifier_module, "autocast", lambda *_: nullcontext())  # no meta there
    net = make_net(make_config({"model": "lenet"}), dataset, GIVEN)
    classifier = Classifier(net, Normalization((0.5,), (0.5,)), "fp32", GIVEN)
    loader = Loader(dataset.images, torch.arange(12), 5, GIVEN)
    logits = [classifier(batch.images) for batch in loader.in_order()]
    assert {tensor.device for tensor in logits} == {GIVEN}
