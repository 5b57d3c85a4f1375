"""What if gradients were dropped instead of being filled with zeros?"""

import ast
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from onsight_explain.mend.calls import Keywords
from onsight_explain.mend.mend import Mend
from onsight_explain.mend.rewritten import Replaced
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import Cause, Seen, WhatIf

_LEAST = 0.05  # of the time, in the optimizer or outside torch's calls


class SetToNone(WhatIf):
    """value: lines where the script fills gradients with zeros."""

    value: tuple[int, ...]
    name = "set_to_none"
    group = "zero_grad"
    rewrites = True
    order = 91
    phases = ("optimizer",)
    label = "gradients dropped, not zeroed"

    @classmethod
    def worth(cls, seen: Seen) -> list[WhatIf]:
        if seen.trace.share("optimizer", "other") < _LEAST:
            return []
        lines = {line for line, _ in _found(seen.tree)}
        return [cls(tuple(sorted(lines)))] if lines else []

    def install(self, hooks: Hooks) -> None:
        for owner in (Optimizer, nn.Module):
            hooks.patches.put(owner, "zero_grad", _dropping(owner.zero_grad))
        hooks.on_source(_drop)

    def lines(self, trace: Trace) -> list[Mend]:
        with open(trace.script, "rb") as file:
            tree = ast.parse(file.read())
        found: list[Mend] = []
        for line, node in _found(tree):
            site = Site(file=trace.script, line=line)
            if grad := _zeroed(node):
                found.append(Replaced(site, ast.unparse(node), f"{ast.unparse(grad)} = None"))
            else:
                found.append(Keywords(site, "zero_grad", values={"set_to_none": None}))
        return found

    def cause(self, trace: Trace) -> Cause:
        share = percent(trace.share("optimizer", "other"))
        return Cause(
            "zeroed-gradients",
            f"{share} of the time is the optimizer and the loop itself, which fills gradients "
            f"with zeros, at line {self.value[0]}",
        )


def _found(tree: ast.Module) -> list[tuple[int, ast.Call | ast.Expr]]:
    """The calls and statements that fill gradients with zeros, with their lines."""
    nodes = (one for one in ast.walk(tree) if isinstance(one, ast.Call | ast.Expr))
    return [(one.lineno, one) for one in nodes if _keeps(one) or _zeroed(one)]


def _keeps(node: ast.AST) -> bool:
    """Whether this is zero_grad(set_to_none=False)."""
    match node:
        case ast.Call(func=ast.Attribute(attr="zero_grad"), keywords=keywords):
            return any(
                one.arg == "set_to_none" and ast.unparse(one.value) == "False" for one in keywords
            )
    return False


def _zeroed(node: ast.AST) -> ast.Attribute | None:
    """The gradient that a statement such as p.grad.zero_() or p.grad.data.zero_() zeroes."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=filled, attr="zero_"))):
            if isinstance(filled, ast.Attribute) and filled.attr == "data":
                filled = filled.value
            if isinstance(filled, ast.Attribute) and filled.attr == "grad":
                return filled
    return None


def _drop(tree: ast.Module) -> dict[str, object]:
    class Drop(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            grad = _zeroed(node)
            if grad is None:
                return node
            grad.ctx = ast.Store()
            return ast.copy_location(ast.Assign([grad], ast.Constant(None)), node)

    ast.fix_missing_locations(Drop().visit(tree))
    return {}


def _dropping(original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(owner: Any, set_to_none: bool = True) -> None:
        original(owner, set_to_none=True)

    return zero_grad
