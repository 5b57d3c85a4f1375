"""Which networks keep contiguous images. No GPU is needed to tell."""

import pytest
import torch
from torch import nn

from onsight.models import trial_forward
from onsight.models.catalog import make_model
from onsight.models.trial_forward import set_memory_format, starts_slowly

GPU, CPU = torch.device("cuda:0"), torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "expected"), [("tf_efficientnet_lite0", True), ("resnet18", False), ("compact", False)]
)
def test_depthwise_convolutions_start_slowly_on_a_gpu(name, expected):
    net = make_model(name, (3, 64, 64), 3)
    assert starts_slowly(net, GPU) is expected
    assert not starts_slowly(net, CPU)


@pytest.mark.parametrize(
    ("asked", "is_slow", "is_channels_last"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("channels_last", True, True),
        ("contiguous", False, False),
    ],
)
def test_a_network_that_starts_slowly_is_contiguous_unless_asked(
    monkeypatch, asked, is_slow, is_channels_last
):
    monkeypatch.setattr(trial_forward, "starts_slowly", lambda net, device: is_slow)
    net = set_memory_format(nn.Conv2d(4, 4, 3), (4, 8, 8), CPU, asked)
    given = []
    net.register_forward_hook(lambda module, inputs, output: given.append(inputs[0]))
    net(torch.zeros(2, 8, 8, 4).permute(0, 3, 1, 2))
    for tensor in (net.weight, given[0]):
        assert tensor.is_contiguous(memory_format=torch.channels_last) is is_channels_last
