"""Channels last."""

import pytest
import torch
from torch import nn

from onsight_explain.what_ifs.channels_last import ChannelsLast


@pytest.mark.parametrize(
    ("shape", "is_channels_last", "count"),
    [([3, 8, 8], False, 1), ([3, 8, 8], True, 0), ([192], False, 0)],
)
def test_tried_on_images(baseline, shape, is_channels_last, count):
    found = ChannelsLast.candidates(baseline(shape=shape, is_channels_last=is_channels_last))
    assert len(found) == count


def test_it_reaches_network_and_batch(apply):
    given = []

    class Net(nn.Conv2d):
        def forward(self, x):
            given.append(x.is_contiguous(memory_format=torch.channels_last))
            return super().forward(x)

    apply(channels_last=True)
    net, images = Net(3, 4, 3), torch.randn(2, 3, 8, 8)
    expected = nn.functional.conv2d(images, net.weight, net.bias)
    torch.testing.assert_close(net(images), expected)
    assert given == [True]
    assert net.weight.is_contiguous(memory_format=torch.channels_last)
