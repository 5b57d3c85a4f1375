"""A site knows where the call ends that was seen, by which it is found in the syntax tree."""

import ast
from pathlib import Path

from onsight.explainer.tracing.sites import Sites


def test_the_end_of_a_call_is_that_of_its_node():
    sites = Sites(Path(__file__).parent)
    here = (
        sites.here(
            1,
        )
    )[0]
    calls = [one for one in ast.walk(ast.parse(Path(__file__).read_text())) if _is_here(one)]
    (call,) = calls
    assert (here.line, here.end) == (call.lineno, (call.end_lineno, call.end_col_offset))


def _is_here(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "sites.here"
