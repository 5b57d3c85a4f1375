"""The model file says under which license the weights that a network started from are published."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from onsight.config import make_config
from onsight.data.fit import ImageFormat
from onsight.data.normalization import Normalization
from onsight.models.classifier import Classifier
from onsight.training.model_file import make_model_file


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pretrained": True}, "apache-2.0"),
        ({"pretrained": True, "weights": "own.pth"}, None),  # the given weights come first
        ({}, None),
    ],
)
def test_only_published_weights_have_a_license(fields, expected):
    dataset = SimpleNamespace(
        classes=("a", "b"),
        format=ImageFormat(4, 4, 1),
        splits=np.zeros(0, np.int8),
        pack=SimpleNamespace(digests=np.zeros((0, 16), np.uint8)),
        seen_before=np.zeros(0, np.int64),
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    classifier = Classifier(net, Normalization((0.5,), (0.5,)), "fp32", torch.device("cpu"))
    config = make_config({"model": "tf_efficientnet_lite0", **fields})
    assert make_model_file(config, dataset, classifier, {}, {}).weights_license == expected
