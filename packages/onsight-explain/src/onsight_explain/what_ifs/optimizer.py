"""What if the optimizer updated all tensors in one kernel, or gradients were set to None?"""

import ast
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from onsight_explain.fixes.calls import SetKeywords, optimizer_keywords
from onsight_explain.fixes.fix import Fix
from onsight_explain.fixes.statements import ReplaceStatement
from onsight_explain.script.hooks import Hooks
from onsight_explain.script.trace import Trace
from onsight_explain.text import percent
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import Baseline, Cause, WhatIf

_FUSABLE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_MIN_SHARE = 0.05  # fraction of the time in the optimizer or outside torch's calls


class FusedOptimizer(WhatIf):
    """Compute the same update in fewer operations."""

    name = "fused"
    group = "optimizer"
    order = 90
    phases = ("optimizer",)
    label = "fused optimizer"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        optimizer, names = baseline.trace.optimizer, [kind.__name__ for kind in _FUSABLE]
        is_fusable = optimizer and optimizer.name in names and not optimizer.is_fused
        return [cls(True)] if is_fusable else []

    def install(self, hooks: Hooks) -> None:
        for kind in _FUSABLE:
            hooks.patches.put(kind, "__init__", _with_fused(kind.__init__))

    def took_effect(self, trace: Trace) -> bool:
        return trace.optimizer is not None and trace.optimizer.is_fused

    def fixes(self, trace: Trace) -> list[Fix]:
        return [optimizer_keywords(trace, foreach=None, fused=True)]

    def cause(self, trace: Trace) -> Cause:
        return Cause(
            "optimizer",
            f"{percent(trace.share('optimizer'))} of the time is the optimizer, which updates "
            "tensor by tensor",
        )


class SetToNone(WhatIf):
    """Set gradients to None at the lines `value`, where the script fills them with zeros."""

    value: tuple[int, ...]
    name = "set_to_none"
    group = "zero_grad"
    rewrites_source = True
    order = 91
    phases = ("optimizer",)
    label = "gradients set to None"

    @classmethod
    def candidates(cls, baseline: Baseline) -> list[WhatIf]:
        if baseline.trace.share("optimizer", "other") < _MIN_SHARE:
            return []
        lines = {node.lineno for node in _find_zeroing(baseline.tree)}
        return [cls(tuple(sorted(lines)))] if lines else []

    def install(self, hooks: Hooks) -> None:
        for owner in (Optimizer, nn.Module):
            hooks.patches.put(owner, "zero_grad", _with_none(owner.zero_grad))
        hooks.on_source(_assign_none)

    def fixes(self, trace: Trace) -> list[Fix]:
        with open(trace.script, "rb") as file:
            tree = ast.parse(file.read())
        fixes: list[Fix] = []
        for node in _find_zeroing(tree):
            site = Site(file=trace.script, line=node.lineno)
            if grad := _zeroed_gradient(node):
                new = f"{ast.unparse(grad)} = None"
                fixes.append(ReplaceStatement(site, ast.unparse(node), new))
            else:
                fixes.append(SetKeywords(site, "zero_grad", values={"set_to_none": None}))
        return fixes

    def cause(self, trace: Trace) -> Cause:
        share = percent(trace.share("optimizer", "other"))
        return Cause(
            "zeroed-gradients",
            f"{share} of the time is the optimizer and the loop itself, which fills gradients "
            f"with zeros, at line {self.value[0]}",
        )


def _with_fused(original: Callable[..., None]) -> Callable[..., None]:
    def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        original(optimizer, *args, **(kwargs | {"fused": True, "foreach": False}))

    return init


def _with_none(original: Callable[..., None]) -> Callable[..., None]:
    def zero_grad(owner: Any, set_to_none: bool = True) -> None:
        original(owner, set_to_none=True)

    return zero_grad


def _find_zeroing(tree: ast.Module) -> list[ast.Call | ast.Expr]:
    """Return the calls and statements that fill gradients with zeros."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Expr))
    return [node for node in nodes if _keeps_gradients(node) or _zeroed_gradient(node)]


def _keeps_gradients(node: ast.AST) -> bool:
    """Return whether a call is zero_grad(set_to_none=False)."""
    match node:
        case ast.Call(func=ast.Attribute(attr="zero_grad"), keywords=keywords):
            return any(
                keyword.arg == "set_to_none" and ast.unparse(keyword.value) == "False"
                for keyword in keywords
            )
    return False


def _zeroed_gradient(node: ast.AST) -> ast.Attribute | None:
    """Return the gradient that a statement such as p.grad.zero_() or p.grad.data.zero_() zeroes."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=zeroed, attr="zero_"))):
            if isinstance(zeroed, ast.Attribute) and zeroed.attr == "data":
                zeroed = zeroed.value
            if isinstance(zeroed, ast.Attribute) and zeroed.attr == "grad":
                return zeroed
    return None


def _assign_none(tree: ast.Module) -> dict[str, object]:
    """Replace statements that zero a gradient by an assignment of None."""

    class Replace(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            grad = _zeroed_gradient(node)
            if grad is None:
                return node
            grad.ctx = ast.Store()
            return ast.copy_location(ast.Assign([grad], ast.Constant(None)), node)

    ast.fix_missing_locations(Replace().visit(tree))
    return {}
