"""Fused optimizers."""

import pytest
import torch
from torch import nn

from onsight_explain.script.trace import OptimizerFacts
from onsight_explain.what_ifs.fused import FusedOptimizer


@pytest.mark.parametrize(
    ("name", "is_fused", "count"), [("SGD", False, 1), ("SGD", True, 0), ("LBFGS", False, 0)]
)
def test_tried_if_torch_has_a_fused_one(seen, name, is_fused, count):
    optimizer = OptimizerFacts(name=name, site=None, is_fused=is_fused)
    assert len(FusedOptimizer.worth(seen(optimizer=optimizer))) == count


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_it_makes_the_same_update(apply, kind):
    def updated():
        weight = nn.Parameter(torch.ones(3))
        optimizer = getattr(torch.optim, kind)([weight], lr=0.1)
        weight.square().sum().backward()
        optimizer.step()
        return weight.detach(), optimizer.defaults["fused"]

    plain, _ = updated()
    apply(fused=True)
    fused, is_fused = updated()
    assert is_fused
    torch.testing.assert_close(fused, plain)
