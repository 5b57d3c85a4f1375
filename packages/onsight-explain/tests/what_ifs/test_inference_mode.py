"""Evaluation under inference_mode."""

from pathlib import Path

import pytest
import torch
from torch import nn

from onsight_explain.delivery.fixed_script import fix_script
from onsight_explain.what_ifs.inference_mode import InferenceMode

SCRIPT = """import torch

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
def test_tried_if_a_long_evaluation_builds_no_graphs(seen, share, graphs, count):
    phases = {"evaluation": 10 * share}
    assert len(InferenceMode.worth(seen(phases=phases, graphs_kept=graphs))) == count


def test_only_evaluation_makes_inference_tensors_of_the_same_values(apply):
    net, images = nn.Linear(2, 2), torch.ones(1, 2)
    expected = net(images)
    apply(evaluates=lambda: not net.training, inference_mode=True)
    assert not net(images).is_inference()
    net.eval()
    assert net(images).is_inference()
    assert torch.equal(net(images), expected)


def test_the_script_evaluates_so_and_smooths_its_weights_as_before(seen, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    after = fix_script(script, InferenceMode(True).lines(seen().trace)).after.decode()
    assert "@torch.inference_mode()\ndef evaluate" in after
    assert "with torch.no_grad():\n        for one" in after
    assert Path(script).read_text(encoding="utf-8") == SCRIPT
