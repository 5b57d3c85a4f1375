"""Rule on losses that are accumulated together with their graphs."""

import ast
from collections.abc import Iterator, Sequence

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.flow import backward_calls, backward_keys, key_of, keys
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import Mistake, Rule
from onsight_lint.scopes import Binding
from onsight_lint.source import FUNCTIONS, own_nodes, start_place
from onsight_lint.values import Origin
from onsight_lint.vocabulary import LOOPS, TENSOR_LOSSES, Kind, word_set

_CUTS = word_set("item detach float tolist numpy data cpu_ no_grad int")
_KEEPS = word_set("mean sum cpu cuda to clone squeeze double half")
_WHY = (
    "The sum or list keeps the graph of every step's loss, so memory grows with each batch. "
    "Only the number is needed: read it with .item()."
)


def _check(context: Context) -> Iterator[Mistake]:
    """`total_loss += loss` where no gradient of the total is ever computed."""
    seen: set[ast.AST] = set()
    for loop in context.step_loops:
        if not isinstance(loop.node, (ast.For, ast.AsyncFor, ast.While)):
            continue
        wanted = backward_keys(context.script.function(loop.node))
        for node in loop_nodes(loop):
            gathered = _gathered(node) or _metered(context, node)
            if gathered is None or node in seen:
                continue
            target, value = gathered
            loss = _loss(context, value)
            if loss is None or key_of(target) in wanted or not key_of(target):
                continue
            if _is_fresh(loop, target, node) or context.gradients.off_here(node):
                continue
            if not _has_graph(context, loop, node, loss):
                continue
            seen.add(node)
            words = context.script.code(loss)
            edits = [replaced(loss, f"{words}.item()")]
            text = fixed(context.script, node, edits)
            problem = f"{context.script.code(target)} keeps the graph of each {words}"
            yield Mistake(
                node, problem, text, mend=edits if _may_be_number(context, target) else []
            )


RULE = Rule("graph-kept", "A running sum of losses keeps their graphs", _WHY, _check, LOOPS)


def _may_be_number(context: Context, target: ast.expr) -> bool:
    """Whether nothing asks a sum or list for what only tensors have."""
    given = {
        key_of(one)
        for call in context.script.nodes(ast.Call)
        if context.script.path_of(call.func).startswith("torch")
        for value in call.args
        for one in ast.walk(value)
        if isinstance(one, ast.expr)
    }
    return not context.kinds.uses(target) - {"append"} and key_of(target) not in given


def _gathered(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """(the sum or list, what is added to it)."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            return target, value
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=value)):
            return (target, value) if key_of(left) and key_of(left) == key_of(target) else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[value])):
            return owner, value
    return None


def _metered(context: Context, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """(the meter, what it is given), for `losses.update(loss)` where the meter adds it up."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner), args=[value, *_]) as call):
            method = context.values.callee(call)
            if not isinstance(method, FUNCTIONS) or len(method.args.args) < 2:
                return None
            name = method.args.args[1].arg
            for one in own_nodes(method):
                if isinstance(one, ast.AugAssign) and name in keys(one.value):
                    cut = any(last_name(part) in _CUTS for part in ast.walk(one.value))
                    if key_of(one.target).startswith("self.") and not cut:
                        return owner, value
    return None


def _loss(context: Context, value: ast.expr) -> ast.expr | None:
    """The part of a value that may be a loss with its graph: `loss` of `loss * len(x)`."""
    while isinstance(value, ast.BinOp):
        if not isinstance(value.op, (ast.Mult, ast.Div)):
            return None
        constant = isinstance(value.left, ast.Constant)
        value = value.right if constant else value.left
    if isinstance(value, (ast.List, ast.Tuple, ast.Dict)):  # `losses += [loss]`
        parts = value.values if isinstance(value, ast.Dict) else value.elts
        return next((one for one in parts if _makes_loss(context, one)), None)
    return value if isinstance(_core(context, value), (ast.Name, ast.Call)) else None


def _core(context: Context, value: ast.expr) -> ast.expr:
    """The loss in `loss.mean().cpu()`, which keeps the graph."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in _KEEPS or context.script.path_of(value.func):
            break
        value = value.func.value
    return value


def _is_loss_call(context: Context, call: ast.Call) -> bool:
    path = context.script.path_of(call.func)
    return bool(TENSOR_LOSSES.match(path)) or (
        not path and context.kinds.kind(call.func) is Kind.LOSS
    )


def _is_fresh(loop: BatchLoop, target: ast.expr, gather: ast.AST) -> bool:
    """Whether the sum or list is created again for each batch."""
    for node in loop_nodes(loop):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and _gathered(node) is None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            earlier = start_place(node) < start_place(gather)
            if earlier and key_of(target) in {key for one in targets for key in keys(one)}:
                return True
    return False


def _has_graph(context: Context, loop: BatchLoop, node: ast.AST, loss: ast.expr) -> bool:
    """Whether a loss certainly has a graph where it is accumulated."""
    if loop.evaluates and context.gradients.off(node):
        return False
    if not loop.trains and not loop.evaluates:
        return False
    if _makes_loss(context, loss):
        return True
    loss = _core(context, loss)
    if not isinstance(loss, ast.Name):
        return False
    bindings = context.script.scope(loss).reaching(loss)
    return _asked(context, loop, loss, bindings) and not _is_cut(bindings)


def _makes_loss(context: Context, value: ast.expr, depth: int = 6) -> bool:
    """Whether an expression is a loss with its graph, wherever it comes from."""
    origins = context.values.origins(value)
    return bool(origins) and all(_is_loss(context, origin, depth) for origin in origins)


def _is_loss(context: Context, origin: Origin, depth: int) -> bool:
    node = origin.node
    if origin.steps or not depth:
        return False
    if isinstance(node, ast.BinOp):
        return any(_makes_loss(context, one, depth - 1) for one in (node.left, node.right))
    if not isinstance(node, ast.Call):
        return False
    kept = isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPS
    if kept and isinstance(node.func, ast.Attribute) and not context.script.path_of(node.func):
        return _makes_loss(context, node.func.value, depth - 1)
    return _is_loss_call(context, node)


def _asked(context: Context, loop: BatchLoop, loss: ast.Name, bindings: Sequence[Binding]) -> bool:
    """Whether gradients of the same loss are computed in the loop."""
    for call in backward_calls(loop.node):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        for name in (owner, *call.args):
            if isinstance(name, ast.Name) and name.id == loss.id:
                same = context.script.scope(name).reaching(name)
                if start_place(call) < start_place(loss) and same == bindings:
                    return True
    return False


def _is_cut(bindings: Sequence[Binding]) -> bool:
    """Whether a value was detached from its graph where it was assigned."""
    values = [one.value for one in bindings if one.value is not None]
    return any(last_name(part) in _CUTS for value in values for part in ast.walk(value))
