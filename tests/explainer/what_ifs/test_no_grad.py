"""Evaluation without graphs."""

import torch
from torch import nn

from onsight.explainer.what_ifs.no_grad import NoGrad


def test_tried_if_an_evaluation_built_graphs(seen):
    assert NoGrad.worth(seen(graphs_kept=3)) == [NoGrad(True)]
    assert NoGrad.worth(seen(graphs_kept=0)) == []


def test_only_evaluation_builds_no_graph(apply):
    apply(no_grad=True)
    net = nn.Linear(2, 2)
    assert net(torch.ones(1, 2)).requires_grad
    net.eval()
    assert not net(torch.ones(1, 2)).requires_grad
