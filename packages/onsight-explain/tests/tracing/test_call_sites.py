"""Sites are of the user's lines, and know where the call ends, to be found in the syntax tree."""

import ast
from pathlib import Path

import onsight_explain
from onsight_explain.tracing.sites import Site, Sites


def test_the_end_of_a_call_is_that_of_its_node():
    sites = Sites(Path(__file__).parent)
    here = sites.here(
        # The call ends in another line.
    )
    calls = [one for one in ast.walk(ast.parse(Path(__file__).read_text())) if _is_here(one)]
    (call,) = calls
    assert (here.line, here.end) == (call.lineno, (call.end_lineno, call.end_col_offset))


def test_onsights_own_lines_are_not_the_users_even_if_its_checkout_is_in_their_folder():
    source = Path(onsight_explain.__file__)
    sites = Sites(source.parents[1])
    own = compile("1", str(source.parent / "explain.py"), "exec")
    users = compile("1", str(source.parents[1] / "train.py"), "exec")
    assert sites.of(((own, 1), (users, 1))) == (Site(file=users.co_filename, line=1),)


def _is_here(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "sites.here"
