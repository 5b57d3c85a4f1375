"""A mend of `x.view(...)` in a network's forward, which needs images with channels first."""

import ast
from dataclasses import dataclass
from typing import ClassVar

from onsight_explain.mend.draft import Draft
from onsight_explain.mend.mend import Mend


@dataclass(frozen=True)
class Reshape(Mend):
    """`view` written as `reshape` in every forward of the script; the same where both work."""

    needs_site: ClassVar[bool] = False

    @property
    def words(self) -> str:
        """The other name."""
        return "reshape(...) in place of view(...), which fails with channels last"

    def apply(self, draft: Draft) -> None:
        """Change the name in each of the calls."""
        ends = [draft.source.end(one.func) for one in views(draft.source.tree)]
        draft.change([(end - len("view"), end, "reshape") for end in ends])


def views(tree: ast.Module) -> list[ast.Call]:
    """The calls of `view` with sizes, not with a dtype, in functions called forward."""
    forwards = [
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == "forward"
    ]
    calls = [one for part in forwards for one in ast.walk(part) if isinstance(one, ast.Call)]
    return [one for one in calls if _is_view(one)]


def reshape_views(tree: ast.Module) -> dict[str, object]:
    """Make the same change in a syntax tree."""
    for call in views(tree):
        assert isinstance(call.func, ast.Attribute)
        call.func.attr = "reshape"
    return {}


def _is_view(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "view" or call.keywords:
        return False
    is_dtype = len(call.args) == 1 and ast.unparse(call.args[0]).startswith("torch.")
    return bool(call.args) and not is_dtype
