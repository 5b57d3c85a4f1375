"""Evaluation without graphs."""

import torch
from torch import nn

from onsight_explain.process.processes import Processes
from onsight_explain.what_ifs.no_grad import NoGrad
from onsight_explain.what_ifs.table import what_ifs_from


def test_tried_if_an_evaluation_built_graphs(seen):
    assert NoGrad.worth(seen(graphs_kept=3)) == [NoGrad(True)]
    assert NoGrad.worth(seen(graphs_kept=0)) == []


def test_only_evaluation_builds_no_graph(apply):
    net = nn.Linear(2, 2)
    apply(evaluates=lambda: not net.training, no_grad=True)
    assert net(torch.ones(1, 2)).requires_grad
    net.eval()
    assert not net(torch.ones(1, 2)).requires_grad


SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 3), torch.zeros(64, dtype=torch.long))
train, val = DataLoader(data, 16, shuffle=True), DataLoader(data, 16)
net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(3):
    for images, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
    for images, labels in val:  # the network still trains, as far as it knows
        with open(sys.argv[1], "a") as file:
            print(net(images).requires_grad, file=file)
"""


def test_a_script_that_evaluates_a_network_in_training_builds_no_graph(tmp_path):
    """Watched and changed at once, as by explain."""
    script, said = tmp_path / "train.py", tmp_path / "said"
    script.write_text(SCRIPT)
    with Processes(script, [str(said)], 10**9, 60.0) as processes:
        processes.prepare(is_late=True)
        processes.run(what_ifs_from({"no_grad": True}), seconds=60.0)
    assert said.read_text().split() == ["False"] * 12
