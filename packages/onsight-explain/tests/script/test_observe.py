"""Facts about the tensors that a script trains with."""

import pytest
import torch

from onsight_explain.process.observe import _is_channels_last


@pytest.mark.parametrize(
    "shape", [(8, 3, 5, 5), (8, 1, 5, 5), (8, 3, 1, 1)], ids=["plain", "one channel", "one pixel"]
)
def test_the_memory_format_is_known_where_both_are_contiguous(shape):
    tensor = torch.zeros(shape)
    assert not _is_channels_last(tensor)
    assert _is_channels_last(tensor.to(memory_format=torch.channels_last))
