"""A script's syntax tree, and the statements of a training loop that can run rarely."""

import ast
import textwrap

import pytest

from onsight_explain.errors import ExplainError
from onsight_explain.script.source import (
    EVERY_STEPS,
    find_mistakes,
    gate_reads,
    gated_statement,
)

LOOP = """
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            {statement}
        print(evaluate(model).item())
"""


def tree_of(statement):
    body = textwrap.indent(statement, " " * 12).strip()
    return ast.parse(textwrap.dedent(LOOP).replace("{statement}", body.replace("\n", "\n    ")))


@pytest.mark.parametrize(
    "statement",
    [
        "total += loss.item()",
        "if step % 1 == 0:\n    print(loss.item())",
        "for guess in out:\n    correct += guess.argmax().item()",
    ],
)
def test_a_statement_that_only_reads_can_run_rarely(statement):
    tree = tree_of(statement)
    found = gated_statement(tree, 9 if "\n" in statement else 8)
    assert found is not None
    assert found.lineno == 8


@pytest.mark.parametrize(
    "statement",
    ["if loss.item() > 9:\n    break", "loss.item(); optimizer.zero_grad()"],
)
def test_a_statement_that_leaves_the_loop_or_updates_cannot(statement):
    tree = tree_of(statement)
    line = 8
    found = gated_statement(tree, line)
    assert found is None or "zero_grad" not in ast.unparse(found)
    if "break" in statement:
        assert found is None


def test_a_statement_that_an_update_needs_cannot():
    source = LOOP.replace("loss = criterion(out, y)", "scale = y.sum().item()").replace(
        "loss.backward()", "(out.sum() * scale).backward()"
    )
    assert gated_statement(ast.parse(textwrap.dedent(source)), 5) is None


def test_a_statement_of_the_epoch_loop_is_not_gated():
    assert gated_statement(tree_of("pass"), 9) is None


def test_the_gated_script_makes_the_same_updates_and_reads_every_fiftieth_time():
    source = textwrap.dedent("""
        def train(steps):
            read, updates = [], []
            for step in range(steps):
                optimizer.step(updates, step)
                read.append(step)
            return read, updates
    """)

    class Optimizer:
        def step(self, updates, step):
            updates.append(step)

    tree = ast.parse(source)
    names = gate_reads(tree, (6,)) | {"optimizer": Optimizer()}
    exec(compile(tree, "planted", "exec"), names)
    read, updates = names["train"](120)
    assert updates == list(range(120))
    assert read == [0, EVERY_STEPS, 2 * EVERY_STEPS]


def test_a_syntax_error_is_an_error_of_this_package(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("for x in loader\n    pass\n")
    with pytest.raises(ExplainError, match=r"train\.py, line 1"):
        find_mistakes(script)
