"""Pinned memory (only a GPU can show that it is faster)."""

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from onsight_explain.what_ifs.copies import PinnedMemory


@pytest.mark.parametrize(
    ("device", "is_pinned", "count"),
    [("cuda:0", False, 1), ("xpu:1", False, 1), ("cuda:0", True, 0), ("cpu", False, 0)],
)
def test_tried_on_a_gpu_that_copies_from_pageable_memory(baseline, device, is_pinned, count):
    found = PinnedMemory.candidates(baseline(device=device, loader={"is_pinned": is_pinned}))
    assert len(found) == count


def test_loaders_pin_and_copies_do_not_block(apply, numbers, monkeypatch):
    asked = []
    monkeypatch.setattr(Tensor, "to", lambda tensor, *args, **kwargs: asked.append(kwargs))
    apply(pin_memory=True)
    assert DataLoader(numbers(), 4).pin_memory
    torch.ones(1).to("cuda:0")
    torch.ones(1).to("cuda:0", torch.float32, False)  # given by position
    torch.ones(1, device="meta").to("cpu")  # would be read before the copy has ended
    assert asked == [{"non_blocking": True}, {}, {}]
