"""bf16 autocast."""

import pytest
import torch
from torch import nn

from onsight_explain.what_ifs.precision import Bf16


@pytest.mark.parametrize(("precision", "count"), [("fp32", 1), ("bf16", 0), ("fp16", 0)])
def test_tried_on_fp32(baseline, precision, count):
    assert len(Bf16.candidates(baseline(precision=precision))) == count


@pytest.mark.parametrize("others", [{}, {"channels_last": True, "no_grad": True}])
def test_it_computes_in_bf16_and_returns_fp32(apply, others):
    computed = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            out = self.layer(x)
            computed.append(out.dtype)
            return out

    apply(bf16=True, **others)
    out = Net()(torch.ones(1, 2))
    loss = nn.CrossEntropyLoss()(out, torch.zeros(1, dtype=torch.long))
    assert (computed, out.dtype) == ([torch.bfloat16], torch.float32)
    loss.backward()
