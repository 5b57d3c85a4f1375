"""Evaluation without graphs for gradients, and in larger batches."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from onsight_explain.delivery.fixed_script import fix_script
from onsight_explain.process.processes import Processes
from onsight_explain.what_ifs.evaluation import EvaluationBatch, InferenceMode, NoGrad
from onsight_explain.what_ifs.what_if import make_what_ifs


@pytest.mark.parametrize(
    ("share", "size", "items", "count"),
    [(0.2, 32, 1000, 1), (0.05, 32, 1000, 0), (0.2, 200, 1000, 0), (0.2, 32, 100, 0)],
)
def test_tried_if_evaluation_takes_long_in_small_batches(baseline, share, size, items, count):
    plain = baseline().trace.loader
    loader = replace(plain, batch_size=size, items=items)
    found = EvaluationBatch.candidates(
        baseline(phases={"evaluation": 10 * share}, evaluation_loader=loader)
    )
    assert len(found) == count
    assert EvaluationBatch.candidates(baseline(phases={"evaluation": 5.0})) == []


def test_the_same_items_in_order_and_training_as_before(apply, numbers):
    apply(evaluation_batch=48)
    batches = [images for images, _ in DataLoader(numbers(), 4)]
    assert [len(batch) for batch in batches] == [48, 16]
    assert torch.equal(torch.cat(batches), numbers().tensors[0])
    assert DataLoader(numbers(), 64).batch_size == 64
    assert DataLoader(numbers(), 4, shuffle=True).batch_size == 4


def test_tried_if_an_evaluation_built_graphs(baseline):
    assert NoGrad.candidates(baseline(graphs_kept=3)) == [NoGrad(True)]
    assert NoGrad.candidates(baseline(graphs_kept=0)) == []


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


@pytest.mark.usefixtures("forked")
def test_a_script_that_evaluates_a_network_in_training_builds_no_graph(tmp_path):
    """Watched and changed at once, as by explain."""
    script, said = tmp_path / "train.py", tmp_path / "said"
    script.write_text(SCRIPT)
    with Processes(script, [str(said)], 10**9, 60.0) as processes:
        processes.prepare(is_late=True)
        processes.start(make_what_ifs({"no_grad": True}), seconds=60.0).trace()
    assert said.read_text().split() == ["False"] * 12


NO_GRAD_SCRIPT = """import torch

@torch.no_grad()
def evaluate(model, loader):
    for images, labels in loader:
        model(images)

def smooth(average, model):
    with torch.no_grad():
        for one, other in zip(average, model):
            one.lerp_(other, 0.1)
"""


@pytest.mark.parametrize(("share", "graphs", "count"), [(0.3, 0, 1), (0.1, 0, 0), (0.3, 5, 0)])
def test_tried_if_a_long_evaluation_builds_no_graphs(baseline, share, graphs, count):
    phases = {"evaluation": 10 * share}
    assert len(InferenceMode.candidates(baseline(phases=phases, graphs_kept=graphs))) == count


def test_only_evaluation_makes_inference_tensors_of_the_same_values(apply):
    net, images = nn.Linear(2, 2), torch.ones(1, 2)
    expected = net(images)
    apply(evaluates=lambda: not net.training, inference_mode=True)
    assert not net(images).is_inference()
    net.eval()
    assert net(images).is_inference()
    assert torch.equal(net(images), expected)


def test_the_script_evaluates_so_and_smooths_its_weights_as_before(baseline, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(NO_GRAD_SCRIPT, encoding="utf-8")
    after = fix_script(script, InferenceMode(True).fixes(baseline().trace)).after.decode()
    assert "@torch.inference_mode()\ndef evaluate" in after
    assert "with torch.no_grad():\n        for one" in after
    assert Path(script).read_text(encoding="utf-8") == NO_GRAD_SCRIPT
