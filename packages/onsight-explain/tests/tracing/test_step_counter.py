"""Counted work, compared with a calculation by hand."""

import torch
from torch import nn

from onsight_explain.tracing.recorder import StepCounter


def test_the_step_of_a_linear_layer():
    net, inputs = nn.Linear(20, 30, bias=False), torch.ones(10, 20, requires_grad=True)
    counter = StepCounter()
    counter.open()
    net(inputs).sum().backward()
    flops, _ = counter.close()
    assert flops == 3 * 2 * 10 * 20 * 30  # forward, and backward for weights and inputs


def test_an_addition_reads_two_tensors_and_writes_one_and_a_view_none():
    one, other = torch.ones(1000), torch.ones(1000)
    counter = StepCounter()
    counter.open()
    _ = one.view(10, 100).transpose(0, 1)
    _ = one + other
    _, moved = counter.close()
    assert moved == 3 * 4000


def test_nothing_is_counted_after_closing():
    counter = StepCounter()
    counter.open()
    counter.close()
    _ = torch.ones(10) + 1
    assert counter._bytes.bytes == 0
