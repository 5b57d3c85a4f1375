"""Values read, and logged, only every Nth step."""

import ast

import pytest

from onsight_explain.script.trace import Reads
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.every_nth_step import RareLogs, RareReads

LOOP = """
for x, y in loader:
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    total += [one.item() for one in loss]
"""


@pytest.mark.parametrize(("per_step", "line", "lines"), [(8, 6, [(6,)]), (1, 6, []), (8, 3, [])])
def test_tried_if_a_statement_reads_often_and_can_wait(baseline, per_step, line, lines):
    reads = [Reads(sites=[Site(file="train.py", line=line)], per_step=per_step)]
    found = RareReads.candidates(baseline(LOOP, reads=reads))
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


LOGGING_LOOP = """
for step, (x, y) in enumerate(loader):
    loss = criterion(net(x), y)
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss.item())
    if step % 10 == 0:
        print(step)
    print(loss.item())
    batch = next(more)
    wandb.log({})
    table.log({})
"""


@pytest.mark.parametrize(("other", "values"), [(0.2, [(6, 9, 11)]), (0.01, [])])
def test_statements_that_log_in_every_step(baseline, other, values):
    found = RareLogs.candidates(baseline(LOGGING_LOOP, phases={"other": 10 * other}))
    assert [one.value for one in found] == values


def test_those_that_read_many_values_are_left_to_the_other_what_if(baseline):
    reads = [Reads(sites=[Site(file="train.py", line=9)], per_step=8)]
    (found,) = RareLogs.candidates(baseline(LOGGING_LOOP, phases={"other": 2.0}, reads=reads))
    assert found.value == (6, 11)


def test_calls_are_made_in_every_fiftieth_step_only(apply):
    logged = []

    class Any:
        def __getattr__(self, name):
            return lambda *_: logged.append(name) if name in ("add_scalar", "log") else self

        def __call__(self, *_):
            return self

    tree = ast.parse(LOGGING_LOOP)
    one = Any()
    hooks = apply(rare_logs=(6, 11), rare_reads=(9,))
    names = hooks.rewrite(tree) | {"loader": [(0, 0)] * 120, "more": iter(range(120))}
    names |= {"print": lambda value: logged.append("print" if value is one else "step")}
    names |= dict.fromkeys(("net", "criterion", "optimizer", "writer", "wandb", "table"), one)
    exec(compile(tree, "planted", "exec"), names)
    counts = {name: logged.count(name) for name in set(logged)}
    assert counts == {"add_scalar": 3, "log": 3 + 120, "print": 3, "step": 12}
