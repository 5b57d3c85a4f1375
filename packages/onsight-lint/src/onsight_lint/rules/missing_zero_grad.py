"""Rule on gradients that add up over the whole training."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import show_with_line_above
from onsight_lint.kinds import Kind
from onsight_lint.loops import called_functions
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import (
    FUNCTIONS,
    LOOPS,
    call_owner,
    expressions_in,
    key_of,
    last_name,
    own_nodes,
)

_RESETS = re.compile(r"zero_|^grads?$|(clear|reset|clean|empty)\w*grad|accum|functional_call")
_KEEPS_GRADIENTS = re.compile(  # functions that may take an optimizer without resetting gradients
    r"^(step|unscale_|print|append|clip\w*|get_\w+|adjust\w*|set_lr|log\w*|save\w*|state_dict)$"
)


def _check(context: Context) -> Iterator[Mistake]:
    """`loss.backward()` and `optimizer.step()` in a loop in which no gradient is reset."""
    seen: set[ast.AST] = set()
    for step in context.values.calls("step"):
        optimizer = call_owner(step)
        if optimizer is None or step.args or step.keywords or not _is_torchs(context, optimizer):
            continue
        for loop in _loops(context, step):
            code = [loop, *called_functions(context, loop)]
            nodes = [node for part in code for node in own_nodes(part)]
            backward = [node for node in nodes if _is_call_of(node, "backward")]
            if backward and backward[0] not in seen and not _may_reset(context, nodes, optimizer):
                seen.add(backward[0])
                yield _mistake(context, backward[0], optimizer)


RULE = Rule(
    id="missing-zero-grad",
    title="Gradients are never reset",
    why=(
        "backward() adds to the gradients that are there. Without zero_grad() every step follows "
        "the sum over all batches so far, not the gradients of its own batch."
    ),
    check=_check,
    pattern=r"\.backward\(",
)


def _mistake(context: Context, backward: ast.AST, optimizer: ast.expr) -> Mistake:
    name = context.script.code(optimizer)
    statement = context.script.statement(backward)
    problem = f"the gradients of all batches add up: {name}.zero_grad() is missing"
    line = f"{name}.zero_grad()"
    return Mistake(backward, problem, show_with_line_above(context.script, statement, line))


def _is_torchs(context: Context, optimizer: ast.expr) -> bool:
    """Return whether an optimizer is torch's, or a parameter, and so resets nothing by itself."""
    nodes = [origin.node for origin in context.values.origins(optimizer)]
    return context.kinds.kind(optimizer) is Kind.OPTIMIZER and all(
        isinstance(node, ast.arg)
        or (isinstance(node, ast.Call) and context.script.path_of(node.func).startswith("torch."))
        for node in nodes
    )


def _loops(context: Context, step: ast.AST, depth: int = 3) -> Iterator[ast.AST]:
    """The innermost loops that repeat a step: around it, or around the calls of its function."""
    for parent in context.script.ancestors(step):
        if isinstance(parent, ast.If) and any(
            isinstance(part, ast.Mod) for part in ast.walk(parent.test)
        ):
            return  # a counter of batches whose gradients are meant to add up
        if isinstance(parent, LOOPS):
            yield parent
            return
        if isinstance(parent, FUNCTIONS):
            for site in context.values.call_sites(parent) if depth else ():
                yield from _loops(context, site, depth - 1)
            return


def _may_reset(context: Context, nodes: list[ast.AST], optimizer: ast.expr) -> bool:
    """Return whether code may reset gradients, or creates the optimizer."""
    name = key_of(optimizer)
    for node in nodes:
        match node:
            case ast.Name() | ast.Attribute() if _RESETS.search(last_name(node)):
                return True
            case ast.Assign(targets=targets) if name in {key_of(target) for target in targets}:
                return True
            case ast.Call(func=function, args=arguments):
                is_known = context.values.callee(node) or _KEEPS_GRADIENTS.search(
                    last_name(function)
                )
                if not is_known and any(
                    key_of(part) == name for value in arguments for part in expressions_in(value)
                ):
                    return True
    return False


def _is_call_of(node: ast.AST, method: str) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == method
