"""Values read every 50th step."""

import ast

import pytest

from onsight_explain.script.trace import Reads
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.rare_reads import RareReads

LOOP = """
for x, y in loader:
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    total += [one.item() for one in loss]
"""


@pytest.mark.parametrize(("per_step", "line", "lines"), [(8, 6, [(6,)]), (1, 6, []), (8, 3, [])])
def test_tried_if_a_statement_reads_often_and_can_wait(seen, per_step, line, lines):
    reads = [Reads(sites=[Site(file="train.py", line=line)], per_step=per_step)]
    found = RareReads.worth(seen(LOOP, reads=reads))
    assert [one.value for one in found] == lines


def test_the_statement_runs_in_every_fiftieth_step_only(apply):
    read = []

    class Loss(list):
        def backward(self):
            pass

    class Value:
        def item(self):
            read.append(1)

    class Optimizer:
        def step(self):
            pass

    tree = ast.parse(LOOP)
    names = apply(rare_reads=(6,)).rewrite(tree) | {
        "loader": [(0, 0)] * 120,
        "net": lambda x: x,
        "criterion": lambda out, y: Loss([Value()]),
        "optimizer": Optimizer(),
        "total": [],
    }
    exec(compile(tree, "planted", "exec"), names)
    assert len(read) == 3
