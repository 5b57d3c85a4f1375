"""Rule on evaluation with gradients switched on."""

import ast
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import within, wrapped
from onsight_lint.loops import Run, network_name
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import own_nodes
from onsight_lint.vocabulary import LOOPS

_WHY = (
    "Each forward pass keeps all activations for a backward pass that never comes: evaluation "
    "needs several times the memory, and more time."
)

_WHY_VOLATILE = (
    "volatile=True has had no effect since PyTorch 0.4: each forward pass keeps all activations "
    "for a backward pass that never comes, so evaluation needs several times the memory."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Evaluation that builds a graph for every batch."""
    loops = context.step_loops
    if not any(loop.trains for loop in loops) and _freezes(context):
        return
    for loop in loops:
        if not loop.evaluates:
            continue
        for run in loop.runs:
            if _needs_no_graph(context, run):
                yield _mistake(context, run)
                break


RULE = Rule("missing-no-grad", "Evaluation with gradients switched on", _WHY, _check, LOOPS)


def _mistake(context: Context, run: Run) -> Mistake:
    call, network = run.helper or run.call, network_name(context, *run)
    statement = context.script.source(call).statement(call)
    text = within(context.script, statement, "with torch.no_grad():")
    problem = f"{network} is evaluated with gradients switched on"
    why = _WHY_VOLATILE if _is_volatile(context, call) else ""
    named = _has_torch(context, call)
    mend = wrapped(context.script, statement, "with torch.no_grad():") if named else []
    return Mistake(call, problem, text, why, mend)


def _is_volatile(context: Context, call: ast.Call) -> bool:
    nodes = own_nodes(context.script.function(call))
    return any(isinstance(one, ast.keyword) and one.arg == "volatile" for one in nodes)


def _has_torch(context: Context, node: ast.AST) -> bool:
    """Whether the file of a node has `import torch` at its top."""
    bindings = context.script.scope(node).tables[context.script.source(node).tree].get("torch", [])
    return bool(bindings) and all(one.path == "torch" for one in bindings)


def _needs_no_graph(context: Context, run: Run) -> bool:
    call, helper = run
    if last_name(context.script.parent(call)) in ("detach", "data"):
        return False
    for owner in context.values.classes(call.func):
        forward = context.values.method(owner, "forward")
        if forward is not None and context.gradients.is_decorated(forward):
            return False
    if helper is not None and context.gradients.off_here(call):
        return False
    return not context.gradients.off(helper or call)


def _freezes(context: Context) -> bool:
    """Whether the script sets requires_grad to False."""
    for node in context.script.nodes(ast.Assign):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(attr="requires_grad")], value=ast.Constant(value=False)
            ):
                return True
    return any(
        isinstance(one, ast.Constant) and one.value is False
        for call in context.values.calls("requires_grad_")
        for one in call.args
    )
