"""Rule on gradients that add up over the whole training."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import show_with_line_above
from onsight_lint.kinds import Kind
from onsight_lint.loops import called_functions
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import FUNCTIONS, LOOPS, call_owner, key_of, keys_in, last_name, own_nodes

_RESETS = re.compile(r"zero_?grad|^grads?$|(clear|reset|clean|empty)\w*grad|accum")
_MAX_SITES = 10  # calls of a function that are considered
_KEEPS = re.compile(  # functions that may take an optimizer without resetting gradients
    r"^(step|unscale_|print|append|clip\w*|get_\w+|adjust\w*|set_lr|log\w*|save\w*|state_dict)$"
)


def _check(context: Context) -> Iterator[Mistake]:
    """`loss.backward()` and `optimizer.step()` in a loop in which no gradient is reset."""
    seen: set[ast.AST] = set()
    repeated: dict[ast.AST, tuple[list[ast.Call], set[str]]] = {}
    for step in context.values.calls("step"):
        optimizer = call_owner(step)
        if optimizer is None or step.args or step.keywords or not _is_torchs(context, optimizer):
            continue
        for loop in _loops(context, step):
            if loop not in repeated:
                repeated[loop] = _repeated(context, loop)
            backward, touched = repeated[loop]
            if backward and key_of(optimizer) not in touched and backward[0] not in seen:
                seen.add(backward[0])
                yield _mistake(context, backward[0], optimizer)


RULE = Rule(
    id="missing-zero-grad",
    title="Gradients are never reset",
    why=(
        "backward() adds to the existing gradients. Without zero_grad() every step follows their "
        "sum over all batches so far, not the gradients of its own batch."
    ),
    check=_check,
    pattern=r"\.backward\(",
)


def _mistake(context: Context, backward: ast.Call, optimizer: ast.expr) -> Mistake:
    name = context.script.code(optimizer)
    problem = f"the gradients of all batches add up: {name}.zero_grad() is missing"
    statement = context.script.statement(backward)
    fixed = show_with_line_above(context.script, statement, f"{name}.zero_grad()")
    return Mistake(backward, problem, fixed)


def _is_torchs(context: Context, optimizer: ast.expr) -> bool:
    """Return whether an optimizer is torch's, or a parameter, and so resets nothing by itself."""
    nodes = [origin.node for origin in context.values.origins(optimizer)]
    return context.kinds.kind(optimizer) is Kind.OPTIMIZER and all(
        isinstance(node, ast.arg)
        or (isinstance(node, ast.Call) and context.script.path_of(node.func).startswith("torch."))
        for node in nodes
    )


def _loops(context: Context, step: ast.AST, depth: int = 2) -> Iterator[ast.AST]:
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
            for site in context.values.call_sites(parent)[:_MAX_SITES] if depth else ():
                yield from _loops(context, site, depth - 1)
            return


def _repeated(context: Context, loop: ast.AST) -> tuple[list[ast.Call], set[str]]:
    """The backward calls of a loop, and the keys of what it creates or passes on.

    No calls if any gradients are reset.
    """
    backward: list[ast.Call] = []
    touched: set[str] = set()
    code = [loop, *called_functions(context, loop)]
    for node in (node for part in code for node in own_nodes(part)):
        match node:
            case ast.Name() | ast.Attribute() if _RESETS.search(last_name(node)):
                return [], set()
            case ast.Assign(targets=targets):
                touched |= set(map(key_of, targets))
            case ast.Call(func=ast.Attribute(attr="backward")):
                backward.append(node)
            case ast.Call(func=function, args=arguments):
                if not context.values.callee(node) and not _KEEPS.search(last_name(function)):
                    touched.update(*map(keys_in, arguments))
    return backward, touched
