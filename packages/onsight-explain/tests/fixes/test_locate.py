"""Names in a script: which are in use, and which a statement assigns."""

import ast
from pathlib import Path

import pytest

from onsight_explain.fixes.draft import CannotFix, Draft
from onsight_explain.fixes.locate import _assigned_names, find_evaluation_loop, unused_name
from onsight_explain.tracing.sites import Site


@pytest.mark.parametrize(
    "text",
    [
        "step = 1",
        "import step",
        "import step.deeper",
        "from x import y as step",
        "async def step(): pass",
        "try: pass\nexcept OSError as step: pass",
    ],
)
def test_a_name_in_use_gets_an_underscore(text):
    draft = Draft(Path("train.py"), text.encode())
    assert unused_name(draft, "step") == "step_"
    assert unused_name(draft, "other") == "other"


def test_an_assigned_attribute_does_not_assign_its_owner():
    assert _assigned_names(ast.parse("model.seen += 1").body[0]) == {"model.seen"}
    assert _assigned_names(ast.parse("a, b.c[i] = 1, 2").body[0]) == {"a"}


TRAINS = """
def update(loss):
    loss.backward()

def fit(loader):
    for images in loader:
        update(model(images))
"""


def evaluation_loop(tmp_path, text):
    draft = Draft(tmp_path / "train.py", (TRAINS + text).encode())
    line = next(n for n, line in enumerate(draft.source.lines, 1) if "out = model" in line)
    return draft.source.code(find_evaluation_loop(draft, Site(str(draft.path), line)))


@pytest.mark.parametrize("trains", ["fit(loader)", "engine.train_epoch()", "optimizer.step(f)"])
def test_an_epoch_loop_that_trains_in_a_function_is_no_evaluation_loop(tmp_path, trains):
    text = f"""
for epoch in range(9):
    {trains}
    for images in held_out:
        out = model(images)
"""
    assert evaluation_loop(tmp_path, text).startswith("for images in held_out")
    with pytest.raises(CannotFix, match="only evaluates"):
        evaluation_loop(tmp_path, f"for images in loader:\n    out = model(images)\n    {trains}\n")


def test_the_outermost_loop_that_only_evaluates_is_found(tmp_path):
    text = """
def show(out):
    print(out)

for name in names:
    for images in held_out[name]:
        out = model(images)
        show(out)
"""
    assert evaluation_loop(tmp_path, text).startswith("for name in names")
