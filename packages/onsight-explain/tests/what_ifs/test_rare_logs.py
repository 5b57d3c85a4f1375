"""Logged every 50th step."""

import ast

import pytest

from onsight_explain.script.trace import Reads
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.rare_logs import RareLogs

LOOP = """
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
def test_statements_that_log_in_every_step(seen, other, values):
    found = RareLogs.worth(seen(LOOP, phases={"other": 10 * other}))
    assert [one.value for one in found] == values


def test_those_that_read_many_values_are_left_to_the_other_what_if(seen):
    reads = [Reads(sites=[Site(file="train.py", line=9)], per_step=8)]
    (found,) = RareLogs.worth(seen(LOOP, phases={"other": 2.0}, reads=reads))
    assert found.value == (6, 11)


def test_calls_are_made_in_every_fiftieth_step_only(apply):
    logged = []

    class Any:
        def __getattr__(self, name):
            return lambda *_: logged.append(name) if name in ("add_scalar", "log") else self

        def __call__(self, *_):
            return self

    tree = ast.parse(LOOP)
    one = Any()
    hooks = apply(rare_logs=(6, 11), rare_reads=(9,))
    names = hooks.rewrite(tree) | {"loader": [(0, 0)] * 120, "more": iter(range(120))}
    names |= {"print": lambda value: logged.append("print" if value is one else "step")}
    names |= dict.fromkeys(("net", "criterion", "optimizer", "writer", "wandb", "table"), one)
    exec(compile(tree, "planted", "exec"), names)
    counts = {name: logged.count(name) for name in set(logged)}
    assert counts == {"add_scalar": 3, "log": 3 + 120, "print": 3, "step": 12}
