"""Rule on tensors that are moved or converted, but whose result is discarded."""

import ast
from collections.abc import Iterator, Sequence

from onsight_lint.edits import indented, replace_node
from onsight_lint.kinds import Kind
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import key_of, word_set

_MOVES = word_set("to cuda cpu half float double bfloat16 long int contiguous")
_MOVABLE_BATCHES = ("transformers", "torch_geometric", "dgl")  # their batches are moved in place
_TENSOR_ATTRIBUTES = word_set(
    "shape size dtype device ndim dim numel nelement to cuda cpu half float double bfloat16 long "
    "int bool byte type mean sum std max min view reshape permute flatten squeeze unsqueeze T t "
    "transpose chunk split expand repeat contiguous detach clone item tolist numpy data grad "
    "requires_grad requires_grad_ backward is_cuda pin_memory argmax topk eq ne softmax sigmoid "
    "log_softmax norm add sub mul div abs clamp round new_zeros new_ones normal_ fill_ zero_ copy_"
)


def _check(context: Context) -> Iterator[Mistake]:
    """`images.to(device)` as a statement, or over a list of tensors."""
    for node in context.script.nodes(ast.Expr):
        if (loop := _loop_over_list(context, node)) is not None:
            yield _list_mistake(context, node, loop)
        else:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            owners = [owner for part in parts if (owner := _moved_tensor(context, part))]
            if parts and len(owners) == len(parts):
                yield _mistake(context, node, parts, owners)


RULE = Rule(
    id="discarded-move",
    title="A tensor is moved and the result discarded",
    why=(
        "Moving or converting a tensor returns a new one and leaves the old one unchanged; only "
        "modules are changed in place. The code that follows still uses the old tensor."
    ),
    check=_check,
    pattern=rf"\.(?:{'|'.join(sorted(_MOVES))})\(",
)


def _moved_tensor(context: Context, expression: ast.expr) -> ast.expr | None:
    """The tensor that an expression moves or converts, if it is used again."""
    match expression:
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) as call if name in _MOVES:
            is_move = name != "to" or call.args or call.keywords
            is_variable = key_of(owner) and not context.script.path_of(owner)
            if is_move and is_variable and _is_tensor(context, owner):
                return owner if _is_used_again(context, owner, call) else None
    return None


def _loop_over_list(context: Context, statement: ast.Expr) -> ast.For | None:
    """The loop whose whole body moves each element of a list, some of them tensors."""
    match context.script.parent(statement), statement.value:
        case (
            ast.For(iter=ast.Name() | ast.List() | ast.Tuple(), body=[_]) as loop,
            ast.Call(func=ast.Attribute(value=ast.Name(id=name) as owner, attr=move), args=args),
        ) if name == key_of(loop.target) and move in _MOVES and (args or move != "to"):
            return loop if Kind.TENSOR in context.kinds.all(owner) else None
    return None


def _is_tensor(context: Context, owner: ast.expr) -> bool:
    kind = context.kinds.kind(owner)
    if kind is Kind.BATCH:
        return _is_used_as_tensor(context, owner) and not _may_have_own_to(context, owner)
    if kind is Kind.TENSOR:
        return _is_used_as_tensor(context, owner)
    return kind is Kind.UNKNOWN and _is_network_input(context, owner)


def _is_used_as_tensor(context: Context, owner: ast.expr) -> bool:
    """Return whether a tensor allows every use of a name."""
    source = context.script.source(owner)
    is_dict = source.code(owner) in source.keyed_by_words
    return not is_dict and not context.kinds.uses(owner) - _TENSOR_ATTRIBUTES


def _may_have_own_to(context: Context, owner: ast.expr) -> bool:
    """Return whether batches may be of a class that defines `.to()`."""
    is_library_batch = any(
        (getattr(node, "module", None) or node.names[0].name).startswith(_MOVABLE_BATCHES)
        for node in context.script.nodes(ast.Import, ast.ImportFrom)
    )
    loaders = context.values.calls("DataLoader")
    is_collated = any(item.arg == "collate_fn" for call in loaders for item in call.keywords)
    return is_library_batch or is_collated or not _is_network_input(context, owner)


def _is_network_input(context: Context, owner: ast.expr) -> bool:
    """Return whether a name that is used as a tensor is passed to a network or a loss."""
    if not isinstance(owner, ast.Name) or not _is_used_as_tensor(context, owner):
        return False
    function = context.script.function(owner)
    for node in context.script.source(owner).by_key[owner.id]:
        call = context.script.parent(node)
        if isinstance(node, ast.Name) and isinstance(call, ast.Call) and node is not call.func:
            is_input = context.kinds.kind(call.func) in (Kind.NETWORK, Kind.LOSS)
            if is_input and context.script.function(call) is function:
                return True
    return False


def _is_used_again(context: Context, owner: ast.expr, move: ast.expr) -> bool:
    """Return whether the tensor is used elsewhere, so that the move mattered."""
    return any(
        move not in context.script.ancestors(node) and _is_same(context, owner, node)
        for node in context.script.source(owner).by_key[key_of(owner)]
    )


def _is_same(context: Context, first: ast.expr, second: ast.expr) -> bool:
    """Return whether a name refers to the same value in two places."""
    if isinstance(first, ast.Name) and isinstance(second, ast.Name):
        scopes = context.script.scope(first)
        return scopes.lookup(first) is scopes.lookup(second)
    return context.script.function(first) is context.script.function(second)


def _list_mistake(context: Context, statement: ast.Expr, loop: ast.For) -> Mistake:
    code = context.script.code
    move, target, tensors = code(statement.value), code(loop.target), code(loop.iter)
    names = tensors
    if isinstance(loop.iter, (ast.List, ast.Tuple)):
        names = ", ".join(map(code, loop.iter.elts))
    fixed = indented(context.script, loop, f"{names} = [{move} for {target} in {tensors}]")
    problem = f"the result of {move} is discarded, so the tensors of {tensors} are unchanged"
    return Mistake(statement, problem, fixed)


def _mistake(
    context: Context, statement: ast.Expr, calls: Sequence[ast.expr], owners: Sequence[ast.expr]
) -> Mistake:
    names = [context.script.code(owner) for owner in owners]
    moves = [context.script.code(call) for call in calls]
    line = f"{', '.join(names)} = {', '.join(moves)}"
    problem = f"the result of {moves[0]} is discarded, so {names[0]} is unchanged"
    fixed = indented(context.script, statement, line)
    changes = [replace_node(context.script, statement, line)]
    return Mistake(statement, problem, fixed, changes=changes)
