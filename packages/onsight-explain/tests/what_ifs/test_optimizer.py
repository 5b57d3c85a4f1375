"""A fused optimizer, and gradients set to None."""

import ast

import pytest
import torch
from torch import nn

from onsight_explain.delivery.fixed_script import fix_script
from onsight_explain.script.trace import OptimizerFacts
from onsight_explain.what_ifs.optimizer import FusedOptimizer, SetToNone


@pytest.mark.parametrize(
    ("name", "is_fused", "count"), [("SGD", False, 1), ("SGD", True, 0), ("LBFGS", False, 0)]
)
def test_tried_if_torch_has_a_fused_one(baseline, name, is_fused, count):
    optimizer = OptimizerFacts(name=name, site=None, is_fused=is_fused)
    assert len(FusedOptimizer.candidates(baseline(optimizer=optimizer))) == count


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


SCRIPT = """import torch
for step in range(3):
    optimizer.zero_grad(set_to_none=False)
    loss(net).backward()
    optimizer.step()
    after.append(net.weight.grad is None)
    for p in net.parameters():
        p.grad.data.zero_()
    after.append(net.weight.grad is None)
"""


@pytest.mark.parametrize(
    ("source", "optimizer", "values"),
    [(SCRIPT, 0.1, [(3, 8)]), (SCRIPT, 0.01, []), ("optimizer.zero_grad()", 0.1, [])],
)
def test_tried_if_the_script_fills_them_and_it_could_matter(baseline, source, optimizer, values):
    found = SetToNone.candidates(baseline(source, phases={"optimizer": 10 * optimizer}))
    assert [one.value for one in found] == values


def train(tree, names=()):
    torch.manual_seed(0)
    net, after = nn.Linear(3, 1), []
    values = {
        "net": net,
        "after": after,
        "loss": lambda net: net(torch.ones(2, 3)).square().sum(),
        "optimizer": torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
    }
    exec(compile(tree, "planted", "exec"), dict(names) | values)
    return net.weight.detach(), after


def test_the_weights_are_the_same(apply, baseline, tmp_path):
    plain, after = train(ast.parse(SCRIPT))
    assert not any(after)
    tree = ast.parse(SCRIPT)
    changed, after = train(tree, apply(set_to_none=(3, 8)).rewrite(tree))
    assert torch.equal(changed, plain)
    assert after == [False, True] * 3
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    trace = baseline(script=str(script)).trace
    text = fix_script(script, SetToNone((3, 8)).fixes(trace)).after.decode()
    assert "optimizer.zero_grad()\n" in text
    assert "p.grad = None\n" in text
    assert torch.equal(train(ast.parse(text))[0], plain)
