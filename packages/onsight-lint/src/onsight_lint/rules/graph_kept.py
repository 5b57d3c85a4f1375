"""Rule on losses that are accumulated together with their graphs."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.kinds import LOSS_FUNCTIONS, Kind
from onsight_lint.loops import BatchLoop, backward_calls, backward_keys, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import (
    FUNCTIONS,
    LOOPS,
    Position,
    call_owner,
    key_of,
    keys_in,
    last_name,
    own_nodes,
    start_position,
    word_set,
)
from onsight_lint.values import Origin

_DETACHES = word_set("item detach float tolist numpy data cpu_ no_grad int")
_KEEPS_GRAPH = word_set("mean sum cpu cuda to clone squeeze double half")


def _check(context: Context) -> Iterator[Mistake]:
    """`total_loss += loss` where no gradient of the total is ever computed."""
    seen: set[ast.AST] = set()
    for loop in context.batch_loops:
        if not isinstance(loop.node, LOOPS):
            continue
        needed = backward_keys(context, context.script.function(loop.node))
        created, backpropagated = _creations(loop), _backpropagated(loop)
        for node in loop_nodes(loop):
            accumulation = _accumulation(node) or _meter_update(context, node)
            if accumulation is None or node in seen:
                continue
            target, value = accumulation
            key, here, loss = key_of(target), start_position(node), _loss_in(context, value)
            if loss is None or key in needed or not key:
                continue
            is_fresh = created.get(key, here) < here
            if is_fresh or context.gradients.are_off_here(node):
                continue
            if _has_graph(context, loop, node, loss, backpropagated):
                seen.add(node)
                yield _mistake(context, loop, node, target, loss)


RULE = Rule(
    id="graph-kept",
    title="A running sum of losses keeps their graphs",
    why=(
        "Each accumulated loss keeps its autograd graph, so memory grows with every batch. "
        ".detach() keeps only the value, and unlike .item() does not wait for the GPU."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _mistake(
    context: Context, loop: BatchLoop, node: ast.AST, target: ast.expr, loss: ast.expr
) -> Mistake:
    name = context.script.code(loss)
    # Not .item(): the sum or list may be used elsewhere in ways that only tensors allow.
    changes = [replace_node(context.script, loss, f"{name}.detach()")]
    problem = f"{context.script.code(target)} keeps the graph of every {name}"
    fixed = show_changed(context.script, node, changes)
    return Mistake(node, problem, fixed, changes=changes if _is_freed(context, loop, loss) else [])


def _is_freed(context: Context, loop: BatchLoop, loss: ast.expr) -> bool:
    """Return whether a backward call in a loop frees the graph of a loss, so nothing can need it.

    A call with keywords, such as retain_graph, may not free it.
    """
    loss = _without_methods(context, loss)
    return isinstance(loss, ast.Name) and any(
        isinstance(part, ast.Name) and part.id == loss.id and _is_same(context, part, loss)
        for call in backward_calls(loop.node)
        if "backward" in last_name(call.func) and not call.keywords
        for value in (call_owner(call), *call.args)
        if value is not None and not _detaches(value)
        for part in ast.walk(value)
    )


def _accumulation(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The sum or list that a statement adds a value to, and the value."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            return target, value
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=value)):
            return (target, value) if key_of(left) == key_of(target) != "" else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[value])):
            return owner, value
    return None


def _meter_update(context: Context, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """`losses.update(loss)`, where the meter is a class of the script that adds the loss up."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner), args=[value, *_]) as call):
            method = context.values.callee(call)
            if not isinstance(method, FUNCTIONS) or len(method.args.args) < 2:
                return None
            name = method.args.args[1].arg
            for part in own_nodes(method):
                if not isinstance(part, ast.AugAssign) or name not in keys_in(part.value):
                    continue
                if key_of(part.target).startswith("self.") and not _detaches(part.value):
                    return owner, value
    return None


def _loss_in(context: Context, value: ast.expr) -> ast.expr | None:
    """The part of a value that may be a loss with its graph: `loss` of `loss * len(x)`."""
    while isinstance(value, ast.BinOp):
        if not isinstance(value.op, (ast.Mult, ast.Div)):
            return None
        value = value.right if isinstance(value.left, ast.Constant) else value.left
    if isinstance(value, (ast.List, ast.Tuple, ast.Dict)):  # `losses += [loss]`
        parts = value.values if isinstance(value, ast.Dict) else value.elts
        return next((part for part in parts if _creates_loss(context, part)), None)
    return value if isinstance(_without_methods(context, value), (ast.Name, ast.Call)) else None


def _without_methods(context: Context, value: ast.expr) -> ast.expr:
    """The loss in `loss.mean().cpu()`, which keeps the graph."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in _KEEPS_GRAPH or context.script.path_of(value.func):
            break
        value = value.func.value
    return value


def _creations(loop: BatchLoop) -> dict[str, Position]:
    """Where each sum or list that is created again for each batch is first created."""
    positions: dict[str, Position] = {}
    for node in loop_nodes(loop):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _accumulation(node) is None:
            for item in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for key in keys_in(item):
                    positions.setdefault(key, start_position(node))
    return positions


def _has_graph(
    context: Context,
    loop: BatchLoop,
    node: ast.AST,
    loss: ast.expr,
    backpropagated: dict[str, list[ast.Name]],
) -> bool:
    """Return whether a loss certainly has a graph where it is accumulated."""
    if loop.evaluates and context.gradients.are_off(node):
        return False
    if not loop.trains and not loop.evaluates:
        return False
    if _creates_loss(context, loss):
        return True
    loss = _without_methods(context, loss)
    if not isinstance(loss, ast.Name):
        return False
    bindings = context.script.scope(loss).reaching(loss)
    values = [binding.value for binding in bindings if binding.value is not None]
    is_backpropagated = any(  # its gradients were computed before
        start_position(name) < start_position(loss) and _is_same(context, name, loss)
        for name in backpropagated.get(loss.id, [])
    )
    return is_backpropagated and not any(map(_detaches, values))


def _is_same(context: Context, name: ast.Name, other: ast.Name) -> bool:
    """Return whether two uses of a name have the same value."""
    return context.script.scope(name).reaching(name) == context.script.scope(other).reaching(other)


def _creates_loss(context: Context, value: ast.expr, depth: int = 6) -> bool:
    """Return whether an expression is a loss with its graph, wherever it comes from."""
    origins = context.values.origins(value)
    return bool(origins) and all(_is_loss(context, origin, depth) for origin in origins)


def _is_loss(context: Context, origin: Origin, depth: int) -> bool:
    match origin.node if depth and not origin.steps else None:
        case ast.BinOp(left=left, right=right):
            return any(_creates_loss(context, operand, depth - 1) for operand in (left, right))
        case ast.Call(func=function):
            path = context.script.path_of(function)
            if path:
                return bool(LOSS_FUNCTIONS.match(path))
            if isinstance(function, ast.Attribute) and function.attr in _KEEPS_GRAPH:
                return _creates_loss(context, function.value, depth - 1)
            return context.kinds.kind(function) is Kind.LOSS
    return False


def _backpropagated(loop: BatchLoop) -> dict[str, list[ast.Name]]:
    """The names whose gradients a loop computes, with where it does."""
    names: dict[str, list[ast.Name]] = defaultdict(list)
    for call in backward_calls(loop.node):
        for name in (call_owner(call), *call.args):
            if isinstance(name, ast.Name):
                names[name.id].append(name)
    return names


def _detaches(value: ast.expr) -> bool:
    """Return whether an expression detaches a value from its graph."""
    return any(last_name(part) in _DETACHES for part in ast.walk(value))
