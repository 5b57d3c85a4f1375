"""Names in a script: which are in use, and which a statement assigns."""

import ast

import pytest

from onsight_explain.fixes.locate import _assigned_names, unused_name


class Draft:
    """The parsed script that `unused_name` reads."""

    def __init__(self, text):
        self.source = self
        self.nodes = list(ast.walk(ast.parse(text)))


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
    assert unused_name(Draft(text), "step") == "step_"
    assert unused_name(Draft(text), "other") == "other"


def test_an_assigned_attribute_does_not_assign_its_owner():
    assert _assigned_names(ast.parse("model.seen += 1").body[0]) == {"model.seen"}
    assert _assigned_names(ast.parse("a, b.c[i] = 1, 2").body[0]) == {"a"}
