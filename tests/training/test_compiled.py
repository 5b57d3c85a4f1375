"""torch.compile itself is replaced: compiling takes too long for a test."""

import pytest
import torch

from onsight.training.step.compiled import Compiled


@pytest.mark.parametrize(("device", "mode"), [("cpu", "default"), ("cuda:0", "reduce-overhead")])
def test_full_batches_use_the_compiled_network_and_a_smaller_last_one_does_not(
    monkeypatch, device, mode
):
    seen = []

    def compile_net(net, *, dynamic, mode):
        def fast(inputs):
            seen.append((len(inputs), dynamic, mode))
            return net(inputs)

        return fast

    monkeypatch.setattr(torch, "compile", compile_net)
    net = torch.nn.Linear(3, 2)
    forward = Compiled(net, torch.device(device))
    for size in (8, 8, 5, 8):
        inputs = torch.randn(size, 3)
        assert torch.equal(forward(inputs), net(inputs))
    assert seen == [(8, False, mode)] * 3
