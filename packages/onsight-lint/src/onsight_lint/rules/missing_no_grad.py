"""Rule on evaluation with gradients enabled."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import show_wrapped, wrap_statement
from onsight_lint.loops import NetworkCall, evaluating_calls, network_code, phase_test
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import called_object, last_name, own_nodes

_WHY_VOLATILE = (
    "volatile=True has had no effect since PyTorch 0.4: each forward pass stores its activations "
    "for a backward pass that never comes, so evaluation takes several times the memory."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Evaluation that builds a graph for every batch."""
    loops = context.batch_loops
    if not any(loop.trains for loop in loops) and _freezes_weights(context):
        return
    for loop in loops:
        building = [call for call in loop.network_calls if _builds_graph(context, call)]
        if loop.evaluates and building:
            yield _mistake(context, building[0], "with torch.no_grad():")
        elif building and building == loop.network_calls and (test := phase_test(loop)):
            places = evaluating_calls(context, loop, test)
            if not all(map(context.gradients.are_off, places)):
                line = f"with torch.set_grad_enabled({context.script.code(test)}):"
                yield _mistake(context, building[0], line)


RULE = Rule(
    id="missing-no-grad",
    title="Evaluation with gradients enabled",
    why=(
        "Each forward pass stores its activations for a backward pass that never comes: evaluation "
        "takes several times the memory, and more time."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _mistake(context: Context, network_call: NetworkCall, line: str) -> Mistake:
    call = network_call.helper or network_call.call
    statement = context.script.statement(call)
    problem = f"{network_code(context, network_call)} is evaluated with gradients enabled"
    nodes = own_nodes(context.script.function(call))
    is_volatile = any(isinstance(node, ast.keyword) and node.arg == "volatile" for node in nodes)
    why = _WHY_VOLATILE if is_volatile else ""
    is_certain = _imports_torch(context, call)
    changes = wrap_statement(context.script, statement, line) if is_certain else []
    return Mistake(call, problem, show_wrapped(context.script, statement, line), why, changes)


def _imports_torch(context: Context, node: ast.AST) -> bool:
    """Return whether the file of a node has `import torch` at its top."""
    tables = context.script.scope(node).tables
    bindings = tables[context.script.source(node).tree].get("torch", [])
    return bool(bindings) and all(binding.path == "torch" for binding in bindings)


def _builds_graph(context: Context, network_call: NetworkCall) -> bool:
    call, helper = network_call
    if last_name(context.script.parent(call)) in ("detach", "data"):
        return False
    for owner in context.values.classes(called_object(call)):
        forward = context.values.method(owner, "forward")
        if forward is not None and context.gradients.are_off_by_decorator(forward):
            return False
    if helper is not None and context.gradients.are_off_here(call):
        return False
    return not context.gradients.are_off(helper or call)


def _freezes_weights(context: Context) -> bool:
    """Return whether the script sets requires_grad to False."""
    for node in context.script.nodes(ast.Assign):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(attr="requires_grad")], value=ast.Constant(value=False)
            ):
                return True
    return any(
        isinstance(value, ast.Constant) and value.value is False
        for call in context.values.calls("requires_grad_")
        for value in call.args
    )
