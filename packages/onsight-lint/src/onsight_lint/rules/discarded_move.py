"""Rule on tensors that are moved or converted, but whose result is discarded."""

import ast
from collections.abc import Iterator

from onsight_lint.context import Context
from onsight_lint.fix import indented, replaced
from onsight_lint.flow import key_of
from onsight_lint.rule import Mistake, Rule
from onsight_lint.vocabulary import Kind, word_set

_MOVES = word_set("to cuda cpu half float double bfloat16 long int contiguous")
_WHY = (
    "Moving or converting a tensor returns a new one and leaves the old one unchanged; only "
    "modules are changed in place. What follows still computes with the old tensor."
)
_NAMED = (ast.Name, ast.List, ast.Tuple)
_FOREIGN = ("transformers", "torch_geometric", "dgl")  # their batches are moved in place
_TENSOR_WORDS = word_set(
    "shape size dtype device ndim dim numel nelement to cuda cpu half float double bfloat16 long "
    "int bool byte type mean sum std max min view reshape permute flatten squeeze unsqueeze T t "
    "transpose chunk split expand repeat contiguous detach clone item tolist numpy data grad "
    "requires_grad requires_grad_ backward is_cuda pin_memory argmax topk eq ne softmax sigmoid "
    "log_softmax norm add sub mul div abs clamp round new_zeros new_ones normal_ fill_ zero_ copy_"
)


def _check(context: Context) -> Iterator[Mistake]:
    """`images.to(device)` as a statement of its own, or over a list of tensors."""
    for node in context.script.nodes(ast.Expr):
        if (loop := _loop_over_list(context, node)) is not None:
            yield _list_mistake(context, node, loop)
        else:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            owners = [_moved(context, part) for part in parts]
            if parts and all(owner is not None for owner in owners):
                yield _mistake(context, node, parts, [one for one in owners if one is not None])


RULE = Rule(
    "discarded-move",
    "A tensor is moved and the result discarded",
    _WHY,
    _check,
    rf"\.(?:{'|'.join(sorted(_MOVES))})\(",
)


def _moved(context: Context, expression: ast.expr) -> ast.expr | None:
    """The tensor that an expression moves or converts."""
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return None
    owner = expression.func.value
    if expression.func.attr not in _MOVES or not key_of(owner) or context.script.path_of(owner):
        return None
    if expression.func.attr == "to" and not expression.args and not expression.keywords:
        return None
    return owner if _is_tensor(context, owner) and _is_used(context, owner, expression) else None


def _loop_over_list(context: Context, statement: ast.Expr) -> ast.For | None:
    """The loop whose whole body moves each element of a list, some of them tensors."""
    loop, call = context.script.parent(statement), statement.value
    if not isinstance(loop, ast.For) or len(loop.body) != 1 or not isinstance(call, ast.Call):
        return None
    if not isinstance(loop.iter, _NAMED) or not isinstance(call.func, ast.Attribute):
        return None
    owner = call.func.value
    same = isinstance(owner, ast.Name) and owner.id == key_of(loop.target)
    moves = same and call.func.attr in _MOVES and bool(call.args or call.func.attr != "to")
    return loop if moves and Kind.TENSOR in context.kinds.all(owner) else None


def _is_tensor(context: Context, owner: ast.expr) -> bool:
    kind = context.kinds.kind(owner)
    if kind is Kind.BATCH:
        return _looks_like_tensor(context, owner) and not _has_own_batches(context, owner)
    if kind is Kind.TENSOR:
        return _looks_like_tensor(context, owner)
    return kind is Kind.UNKNOWN and _is_input(context, owner)


def _looks_like_tensor(context: Context, owner: ast.expr) -> bool:
    """Whether a name is used only in ways that a tensor allows."""
    if context.kinds.uses(owner) - _TENSOR_WORDS:
        return False
    words = key_of(owner)
    for node in context.script.source(owner).all(ast.Subscript, ast.keyword):
        if isinstance(node, ast.Subscript) and context.script.code(node.value) == words:
            by_word = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            if by_word and not isinstance(owner, ast.Subscript):
                return False
        if isinstance(node, ast.keyword) and node.arg is None and key_of(node.value) == words:
            return False
    return True


def _has_own_batches(context: Context, owner: ast.expr) -> bool:
    """Whether batches may be of a class with its own `.to()`."""
    paths = {
        binding.path
        for scopes in context.script.scopes.values()
        for table in scopes.tables.values()
        for bindings in table.values()
        for binding in bindings
        if binding.how == "import"
    }
    foreign = any(path.startswith(_FOREIGN) for path in paths)
    called = context.values.calls("DataLoader")
    gathers = any(one.arg == "collate_fn" for call in called for one in call.keywords)
    return foreign or gathers or not _is_input(context, owner)


def _is_input(context: Context, owner: ast.expr) -> bool:
    """Whether a name that looks like a tensor is passed to a network or a loss."""
    if not isinstance(owner, ast.Name) or not _looks_like_tensor(context, owner):
        return False
    function = context.script.function(owner)
    for node in context.script.source(owner).all(ast.Call):
        if context.kinds.kind(node.func) in (Kind.NETWORK, Kind.LOSS):
            named = any(isinstance(one, ast.Name) and one.id == owner.id for one in node.args)
            if named and context.script.function(node) is function:
                return True
    return False


def _is_used(context: Context, owner: ast.expr, move: ast.expr) -> bool:
    """Whether the tensor is used again, so that the move mattered."""
    words = key_of(owner)
    for node in context.script.source(owner).all(ast.Name, ast.Attribute, ast.Subscript):
        if key_of(node) == words and node is not owner:
            reads = isinstance(getattr(node, "ctx", None), ast.Load)
            inside = any(parent is move for parent in context.script.source(node).ancestors(node))
            if reads and not inside and _is_same(context, owner, node):
                return True
    return False


def _is_same(context: Context, one: ast.expr, other: ast.expr) -> bool:
    """Whether the same name refers to the same value in two places."""
    if isinstance(one, ast.Name) and isinstance(other, ast.Name):
        scopes = context.script.scope(one)
        return scopes.lookup(one) is scopes.lookup(other)
    return context.script.function(one) is context.script.function(other)


def _list_mistake(context: Context, statement: ast.Expr, loop: ast.For) -> Mistake:
    move, target = context.script.code(statement.value), context.script.code(loop.target)
    things = context.script.code(loop.iter)
    names = things
    if isinstance(loop.iter, (ast.List, ast.Tuple)):
        names = ", ".join(map(context.script.code, loop.iter.elts))
    line = f"{names} = [{move} for {target} in {things}]"
    problem = f"the result of {move} is discarded: the tensors of {things} stay as they were"
    text = indented(context.script, loop, line)
    return Mistake(statement, problem, text)


def _mistake(
    context: Context, statement: ast.Expr, parts: list[ast.expr], owners: list[ast.expr]
) -> Mistake:
    words = [context.script.code(owner) for owner in owners]
    calls = [context.script.code(part) for part in parts]
    line = f"{', '.join(words)} = {', '.join(calls)}"
    text = indented(context.script, statement, line)
    problem = f"the result of {calls[0]} is discarded: {words[0]} stays as it was"
    return Mistake(statement, problem, text, mend=[replaced(statement, line)])
