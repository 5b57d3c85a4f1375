"""Means over the rows of one batch, and the sums and lists of them that loops gather."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from onsight_lint.edits import show_replaced
from onsight_lint.facts import Facts
from onsight_lint.kinds import LOSS_FUNCTIONS, Kind
from onsight_lint.loops import BatchLoop, batch_length, is_batch_number, loop_nodes
from onsight_lint.syntax import (
    key_of,
    keyword_value,
    last_name,
    own_nodes,
    start_position,
    word_set,
)
from onsight_lint.values import Origin

_KEEP_VALUE = word_set(  # methods
    "item detach cpu cuda float numpy double to clone squeeze unsqueeze"
)
_COUNTS = re.compile(  # the code of a count of equal elements
    r"(?!.*(?:mean|/)).*(?:(?:==|\beq\b).*\.sum\(\)|\bsum\(.*==)", re.DOTALL
)
_KEEP_MEAN = word_set("float reduce_mean tensor")  # functions
_MAX_BINDINGS = 100  # of a name that may count batches
_MEANS = ("mean", "average", "fmean")
_STACKS = word_set("stack tensor Tensor array asarray")
_ACCURACIES = word_set("accuracy_score balanced_accuracy_score multiclass_accuracy")


@dataclass(frozen=True)
class BatchSum:
    """A sum, list or meter that a loop adds batch means or numbers of rows to."""

    key: str
    statement: ast.stmt  # the statement in the loop
    value: ast.expr  # the value added
    is_count: bool = False  # of rows, instead of a mean

    @property
    def is_list(self) -> bool:
        """Return whether the means are collected in a list."""
        call = self.statement.value if isinstance(self.statement, ast.Expr) else None
        return isinstance(call, ast.Call) and last_name(call.func) == "append"


def batch_sums(facts: Facts, loop: BatchLoop) -> Iterator[BatchSum]:
    """Yield the sums, lists and meters that a loop adds batch means or numbers of rows to."""
    for node in loop_nodes(loop):
        key, value = added(node) or ("", None)
        if value is None or not isinstance(node, ast.stmt):
            continue
        if is_batch_mean(facts, value):
            yield BatchSum(key, node, value)
        elif isinstance(node, ast.AugAssign) and _is_count(facts, value):
            yield BatchSum(key, node, value, is_count=True)


def added(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Return the key of the sum, list or meter that a statement adds a value to, and the value."""
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            key = key_of(target)
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=owner, attr="append" | "update"),
                args=[value],
                keywords=[],
            )
        ):
            key = key_of(owner)
        case _:
            return None
    return (key, value) if key else None


def is_batch_mean(facts: Facts, value: ast.expr, depth: int = 8) -> bool:
    """Return whether a value is a mean over the rows of one batch."""
    if not depth:
        return False
    depth -= 1
    match value:
        case ast.Call() if (converted := _converted(facts, value)) is not None:
            return is_batch_mean(facts, converted, depth)
        case ast.Call(func=function, args=arguments) if last_name(function) in _KEEP_MEAN:
            return bool(arguments) and is_batch_mean(facts, arguments[0], depth)
        case (
            ast.Attribute(value=mean, attr="data")
            | ast.BinOp(left=ast.Constant(), op=ast.Mult(), right=mean)
            | ast.BinOp(left=mean, op=ast.Mult() | ast.Div(), right=ast.Constant())
        ):
            return is_batch_mean(facts, mean, depth)
        case ast.BinOp(op=ast.Div(), right=rows):
            return _is_row_count(facts, rows)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return is_batch_mean(facts, left, depth) and is_batch_mean(facts, right, depth)
        case ast.BinOp():
            return False
        case ast.Attribute(value=output, attr="loss"):
            nodes = [origin.node for origin in facts.values.origins(output)]
            return bool(nodes) and all(_computes_loss(facts, n, ("labels", None)) for n in nodes)
    origins = facts.values.origins(value)
    return bool(origins) and all(_is_mean_origin(facts, item, value, depth) for item in origins)


class Division(NamedTuple):
    """Where a sum, list or meter is divided, or its mean is taken."""

    node: ast.AST
    divisor: ast.expr | None  # None: the mean of a list


def divisions_after(facts: Facts, loop: BatchLoop) -> dict[str, list[Division]]:
    """Return the divisions after a loop, in its function, by the key of what is divided."""
    begin, inside = start_position(loop.node), set(loop_nodes(loop))
    divisions: dict[str, list[Division]] = defaultdict(list)
    for node in own_nodes(facts.script.function(loop.node)):
        division = _divided(node)
        if division is not None:
            value, divisor = division
            key = _summed_key(value) if isinstance(node, ast.BinOp) else key_of(value)
            if key and start_position(node) > begin and node not in inside:
                divisions[key].append(Division(node, divisor))
    return divisions


def averaged_list(node: ast.AST) -> ast.expr | None:
    """Return the list whose mean is taken: `losses` of `sum(losses) / len(losses)`."""
    match _divided(node):
        case ast.expr() as values, None:
            return values
        case ast.Call(func=ast.Name(id="sum"), args=[values]), ast.Call(func=ast.Name(id="len")):
            return values
    return None


def is_batch_count(facts: Facts, loop: BatchLoop, count: ast.expr | None, means: str = "") -> bool:
    """Return whether an expression is the number of batches, or of the means in a list.

    None, the divisor of `np.mean`, is the length of a list.
    """
    match count:
        case None:
            return bool(means)
        case ast.Call(func=ast.Name(id="max"), args=parts):
            return any(is_batch_count(facts, loop, part, means) for part in parts)
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            is_same = facts.script.code(counted) == facts.script.code(loop.loader)
            is_list = bool(means) and key_of(counted) == means
            return is_list or is_same or facts.kinds.kind(counted) is Kind.LOADER
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=1)):
            return is_batch_number(loop, left)
        case ast.Name():
            nodes = [origin.node for origin in facts.values.origins(count)]
            return _is_counter(facts, loop, count) or any(
                isinstance(node, ast.Call) and is_batch_count(facts, loop, node) for node in nodes
            )
    return False


def weighted_line(facts: Facts, batch_sum: BatchSum, rows: str) -> str:
    """Return the statement in the loop with each mean weighted by the rows of its batch."""
    value = batch_sum.value
    code = facts.script.code(value)
    if isinstance(value, ast.BinOp) and not isinstance(value.op, (ast.Mult, ast.Div)):
        code = f"({code})"
    return show_replaced(facts.script, value, f"{code} * {rows}").strip()


def batch_rows(facts: Facts, loop: BatchLoop, batch_sum: BatchSum) -> str:
    """Return code for the number of rows of a batch, in the names that the script uses."""
    value: ast.AST = batch_sum.value
    for _ in range(8):
        match value:
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _KEEP_VALUE:
                value = inner
        if isinstance(value, ast.Name):
            bindings = facts.script.scope(value).reaching(value)
            values = [item.value for item in bindings if item.value is not None and not item.steps]
            value = values[0] if values else value
    if isinstance(value, ast.Call):
        names = [part.id for part in value.args[1:] if isinstance(part, ast.Name)]
        if names:
            return f"len({names[0]})"
    return batch_length(facts, loop)


def _divided(node: ast.AST) -> tuple[ast.expr, ast.expr | None] | None:
    """What is divided, with the divisor, or what the mean is taken of, with None."""
    value: ast.expr
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return left, right
        case ast.AugAssign(target=target, op=ast.Div(), value=divisor):
            return target, divisor
        case ast.Call(func=function, args=[value, *_]) if last_name(function) in _MEANS:
            if isinstance(value, ast.Call) and last_name(value.func) in _STACKS and value.args:
                value = value.args[0]  # torch.mean(torch.stack(losses))
            return value, None
        case ast.Call(func=ast.Attribute(value=ast.Call(args=[value, *_]), attr="mean"), args=[]):
            return value, None  # torch.stack(losses).mean()
    return None


def _summed_key(expression: ast.expr) -> str:
    """The key of the sum in an expression such as `100 * total.item()`."""
    while True:
        match expression:
            case (
                ast.BinOp(left=ast.Constant(), op=ast.Mult(), right=inner)
                | ast.BinOp(left=inner, op=ast.Mult())
                | ast.Call(func=ast.Attribute(value=inner))
                | ast.Call(func=ast.Name(id="float" | "sum"), args=[inner, *_])
            ):
                expression = inner
            case _:
                return key_of(expression)


def _is_counter(facts: Facts, loop: BatchLoop, name: ast.Name) -> bool:
    """Return whether a name is incremented once per batch."""
    return any(
        isinstance(item.value, ast.Constant)
        and (item.kind, item.value.value) == ("augmented", 1)
        and facts.script.parent(item.node) is loop.node
        for item in facts.script.scope(name).lookup(name)[:_MAX_BINDINGS]
    )


def _is_mean_origin(facts: Facts, origin: Origin, value: ast.expr, depth: int) -> bool:
    node = origin.node
    if origin.steps in ((0,), ("loss",)):
        return _computes_loss(facts, node, ("labels",))
    if origin.steps or not isinstance(node, ast.expr):
        return False
    if isinstance(node, ast.Call):
        return _is_mean_call(facts, node, depth)
    return node is not value and is_batch_mean(facts, node, depth)


def _computes_loss(facts: Facts, node: ast.AST, names: tuple[str | None, ...]) -> bool:
    """Return whether a call runs a network of transformers that is given the labels.

    names: of the keywords that pass them; None for `**batch`.
    """
    keywords = node.keywords if isinstance(node, ast.Call) else []
    is_given_labels = any(keyword.arg in names for keyword in keywords)
    return is_given_labels and facts.kinds.kind(node) is Kind.TENSOR


def _is_count(facts: Facts, value: ast.expr) -> bool:
    """Return whether a value counts rows of a batch: `(predicted == labels).sum().item()`."""
    while isinstance(value, ast.Call) and (inner := _converted(facts, value)) is not None:
        value = inner
    codes = [facts.script.code(item.node)[:200] for item in facts.values.origins(value)]
    return bool(codes) and all(map(_COUNTS.match, codes))


def _is_mean_call(facts: Facts, call: ast.Call, depth: int) -> bool:
    path, name = facts.script.path_of(call.func), last_name(call.func)
    if LOSS_FUNCTIONS.match(path):
        return _reduces_to_mean(facts, call)
    if name in _ACCURACIES or path.endswith("metrics.functional.accuracy"):
        return True
    if name == "mean" and not call.keywords:
        return len(call.args) == (1 if path else 0)
    match call:
        case ast.Call(
            func=ast.Attribute(attr="mul" | "mul_"), args=[ast.BinOp(op=ast.Div(), right=rows)]
        ):
            return _is_row_count(facts, rows)  # `correct.mul_(100 / labels.size(0))`
    if not path and facts.kinds.kind(call.func) is Kind.LOSS:
        losses = [origin.node for origin in facts.values.origins(call.func)]
        return all(
            isinstance(loss, ast.arg)
            or LOSS_FUNCTIONS.match(facts.script.path_of(loss))
            or (isinstance(loss, ast.Call) and _reduces_to_mean(facts, loss))
            for loss in losses
        )
    if (inner := _converted(facts, call)) is not None:
        return is_batch_mean(facts, inner, depth)
    return name in _KEEP_MEAN and bool(call.args) and is_batch_mean(facts, call.args[0], depth)


def _reduces_to_mean(facts: Facts, call: ast.Call) -> bool:
    """Return whether a loss is the mean over its batch, as it is by default."""
    if isinstance(facts.script.definition(call.func), ast.ClassDef):
        return False
    if any(keyword.arg in ("size_average", "reduce", None) for keyword in call.keywords):
        return False
    reduction = keyword_value(call, "reduction")
    return reduction is None or facts.constants.value(reduction) == "mean"


def _is_row_count(facts: Facts, expression: ast.expr) -> bool:
    """Return whether an expression is the size of a batch: `labels.size(0)`, `len(labels)`."""
    return all(_counts_rows(facts, origin.node) for origin in facts.values.origins(expression))


def _counts_rows(facts: Facts, node: ast.AST) -> bool:
    match node:
        case (
            ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)])
            | ast.Call(func=ast.Attribute(attr="numel" | "nelement"))
            | ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0))
        ):
            return True
        case ast.BinOp(left=rows, op=ast.Mult(), right=ast.Constant(value=1)):
            return _is_row_count(facts, rows)  # `len(labels) * 1.0`
        case ast.Call(func=ast.Name(id="len"), args=[rows]):
            is_whole = facts.kinds.kind(rows) in (Kind.LOADER, Kind.DATASET)
            return not is_whole and last_name(rows) != "dataset"
    return False


def _converted(facts: Facts, call: ast.Call) -> ast.expr | None:
    """The value that `.item()` and similar methods are called on."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEP_VALUE:
        return None if facts.script.path_of(call.func) else call.func.value
    return None
