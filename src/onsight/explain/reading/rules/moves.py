"""Rule on tensors that are moved or converted, and the result thrown away."""

import ast
from collections.abc import Iterator

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import found, indented
from onsight.explain.reading.flow import key_of
from onsight.explain.reading.vocabulary import Kind
from onsight.explain.reading.wordset import word_set

_MOVES = word_set("to cuda cpu half float double bfloat16 long int contiguous")
_WHY = (
    "A tensor's .{move}() gives a new tensor and leaves the old one as it was; only modules are "
    "changed in place. What follows still computes with the old tensor."
)
_NAMED = (ast.Name, ast.List, ast.Tuple)
_FOREIGN = ("transformers", "torch_geometric", "dgl")  # their batches do move in place
_TENSOR_WORDS = word_set(
    "shape size dtype device ndim dim numel nelement to cuda cpu half float double bfloat16 long "
    "int bool byte type mean sum std max min view reshape permute flatten squeeze unsqueeze T t "
    "transpose chunk split expand repeat contiguous detach clone item tolist numpy data grad "
    "requires_grad requires_grad_ backward is_cuda pin_memory argmax topk eq ne softmax sigmoid "
    "log_softmax norm add sub mul div abs clamp round new_zeros new_ones normal_ fill_ zero_ copy_"
)


def discarded_moves(facts: Facts) -> Iterator[Finding]:
    """`images.to(device)` as a statement of its own."""
    for node in facts.script.nodes():
        if isinstance(node, ast.Expr) and (loop := _loop_over_list(facts, node)) is not None:
            yield _list_finding(facts, node, loop)
        elif isinstance(node, ast.Expr):
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            owners = [_moved(facts, part) for part in parts]
            if parts and all(owner is not None for owner in owners):
                yield _finding(facts, node, parts, [one for one in owners if one is not None])


def _moved(facts: Facts, expression: ast.expr) -> ast.expr | None:
    """The tensor whose move an expression is."""
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return None
    owner = expression.func.value
    if expression.func.attr not in _MOVES or not key_of(owner) or facts.script.path_of(owner):
        return None
    if expression.func.attr == "to" and not expression.args and not expression.keywords:
        return None
    return owner if _is_tensor(facts, owner) and _is_used(facts, owner, expression) else None


def _loop_over_list(facts: Facts, statement: ast.Expr) -> ast.For | None:
    """The loop whose whole body moves each thing of a list, some of them tensors."""
    loop, call = facts.script.parent(statement), statement.value
    if not isinstance(loop, ast.For) or len(loop.body) != 1 or not isinstance(call, ast.Call):
        return None
    if not isinstance(loop.iter, _NAMED) or not isinstance(call.func, ast.Attribute):
        return None
    owner = call.func.value
    same = isinstance(owner, ast.Name) and owner.id == key_of(loop.target)
    moves = same and call.func.attr in _MOVES and bool(call.args or call.func.attr != "to")
    return loop if moves and Kind.TENSOR in facts.kinds.all(owner) else None


def _is_tensor(facts: Facts, owner: ast.expr) -> bool:
    kind = facts.kinds.kind(owner)
    if kind is Kind.BATCH:
        return _looks_like_tensor(facts, owner) and not _has_own_batches(facts, owner)
    if kind is Kind.TENSOR:
        return _looks_like_tensor(facts, owner)
    return kind is Kind.UNKNOWN and _is_input(facts, owner)


def _looks_like_tensor(facts: Facts, owner: ast.expr) -> bool:
    """Whether nothing is done with a name that cannot be done with a tensor."""
    if facts.kinds.uses(owner) - _TENSOR_WORDS:
        return False
    words = key_of(owner)
    for node in facts.script.source(owner).nodes:
        if isinstance(node, ast.Subscript) and facts.script.words(node.value) == words:
            by_word = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            if by_word and not isinstance(owner, ast.Subscript):
                return False
        if isinstance(node, ast.keyword) and node.arg is None and key_of(node.value) == words:
            return False
    return True


def _has_own_batches(facts: Facts, owner: ast.expr) -> bool:
    """Whether batches may be of a class with a `.to()` of its own."""
    paths = {
        binding.path
        for scopes in facts.script.scopes.values()
        for table in scopes.tables.values()
        for bindings in table.values()
        for binding in bindings
        if binding.how == "import"
    }
    foreign = any(path.startswith(_FOREIGN) for path in paths)
    called = facts.values.calls("DataLoader")
    gathers = any(one.arg == "collate_fn" for call in called for one in call.keywords)
    return foreign or gathers or not _is_input(facts, owner)


def _is_input(facts: Facts, owner: ast.expr) -> bool:
    """Whether a name is handed to a network or a loss as it is, with a usual tensor's name."""
    if not isinstance(owner, ast.Name) or not _looks_like_tensor(facts, owner):
        return False
    function = facts.script.function(owner)
    for node in facts.script.source(owner).nodes:
        if isinstance(node, ast.Call) and facts.kinds.kind(node.func) in (Kind.NETWORK, Kind.LOSS):
            named = any(isinstance(one, ast.Name) and one.id == owner.id for one in node.args)
            if named and facts.script.function(node) is function:
                return True
    return False


def _is_used(facts: Facts, owner: ast.expr, move: ast.expr) -> bool:
    """Whether the tensor is used again, so that the move was meant."""
    words = key_of(owner)
    for node in facts.script.source(owner).nodes:
        if isinstance(node, ast.expr) and key_of(node) == words and node is not owner:
            reads = isinstance(getattr(node, "ctx", None), ast.Load)
            inside = any(parent is move for parent in facts.script.source(node).ancestors(node))
            if reads and not inside and _is_same(facts, owner, node):
                return True
    return False


def _is_same(facts: Facts, one: ast.expr, other: ast.expr) -> bool:
    """Whether equal words mean the same thing in two places."""
    if isinstance(one, ast.Name) and isinstance(other, ast.Name):
        scopes = facts.script.scope(one)
        return scopes.lookup(one) is scopes.lookup(other)
    return facts.script.function(one) is facts.script.function(other)


def _list_finding(facts: Facts, statement: ast.Expr, loop: ast.For) -> Finding:
    move, target = facts.script.words(statement.value), facts.script.words(loop.target)
    things = facts.script.words(loop.iter)
    names = things
    if isinstance(loop.iter, (ast.List, ast.Tuple)):
        names = ", ".join(map(facts.script.words, loop.iter.elts))
    line = f"{names} = [{move} for {target} in {things}]"
    problem = f"{move} is thrown away: the tensors of {things} stay where and what they were"
    why = _WHY.format(move=last_name(statement.value))
    text = indented(facts.script, loop, line)
    return found(facts.script, statement, "discarded-move", problem, why, text)


def _finding(
    facts: Facts, statement: ast.Expr, parts: list[ast.expr], owners: list[ast.expr]
) -> Finding:
    words = [facts.script.words(owner) for owner in owners]
    calls = [facts.script.words(part) for part in parts]
    text = indented(facts.script, statement, f"{', '.join(words)} = {', '.join(calls)}")
    move = last_name(parts[0])
    problem = f"{calls[0]} is thrown away: {words[0]} stays where and what it was"
    return found(facts.script, statement, "discarded-move", problem, _WHY.format(move=move), text)
