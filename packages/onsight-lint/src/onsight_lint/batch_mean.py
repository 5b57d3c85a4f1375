"""Whether a value is a mean over the rows of one batch."""

import ast

from onsight_lint.calls import keyword, last_name
from onsight_lint.facts import Facts
from onsight_lint.values import Origin
from onsight_lint.vocabulary import TENSOR_LOSSES, Kind, word_set

READS = word_set("item detach cpu float numpy double to")  # methods that keep the value
_SHARES = word_set("accuracy_score balanced_accuracy_score multiclass_accuracy")


def is_mean(facts: Facts, value: ast.expr, depth: int = 8) -> bool:
    """Whether a value is a mean over the rows of one batch."""
    if not depth:
        return False
    if isinstance(value, ast.Call) and (inner := _read(facts, value)) is not None:
        return is_mean(facts, inner, depth - 1)
    if isinstance(value, ast.Attribute) and value.attr == "data":
        return is_mean(facts, value.value, depth - 1)
    if isinstance(value, ast.Call) and last_name(value.func) in ("float", "reduce_mean"):
        return bool(value.args) and is_mean(facts, value.args[0], depth - 1)
    if isinstance(value, ast.BinOp):
        return _is_mean_of_parts(facts, value, depth - 1)
    origins = facts.values.origins(value)
    return bool(origins) and all(_is_mean_origin(facts, one, value, depth - 1) for one in origins)


def _is_mean_of_parts(facts: Facts, value: ast.BinOp, depth: int) -> bool:
    if isinstance(value.op, ast.Mult):
        for one, other in ((value.left, value.right), (value.right, value.left)):
            if isinstance(one, ast.Constant):
                return is_mean(facts, other, depth)
        return False
    if isinstance(value.op, ast.Div):
        if _is_rows(facts, value.right):
            return True
        return isinstance(value.right, ast.Constant) and is_mean(facts, value.left, depth)
    if isinstance(value.op, ast.Add):
        return all(is_mean(facts, one, depth) for one in (value.left, value.right))
    return False


def _is_mean_origin(facts: Facts, origin: Origin, value: ast.expr, depth: int) -> bool:
    node = origin.node
    if origin.steps or not isinstance(node, ast.expr):
        return False
    if isinstance(node, ast.Call):
        return _is_mean_call(facts, node, depth)
    return node is not value and is_mean(facts, node, depth)


def _is_mean_call(facts: Facts, call: ast.Call, depth: int) -> bool:
    path, name = facts.script.path_of(call.func), last_name(call.func)
    if TENSOR_LOSSES.match(path):
        return _reduces_to_mean(facts, call)
    if name in _SHARES:
        return True
    if name == "mean" and not call.keywords:
        return len(call.args) == (1 if path else 0)
    if not path and facts.kinds.kind(call.func) is Kind.LOSS:
        made = [one.node for one in facts.values.origins(call.func)]
        return all(
            isinstance(one, ast.arg)
            or TENSOR_LOSSES.match(facts.script.path_of(one))
            or (isinstance(one, ast.Call) and _reduces_to_mean(facts, one))
            for one in made
        )
    if (inner := _read(facts, call)) is not None:
        return is_mean(facts, inner, depth)
    return name == "float" and bool(call.args) and is_mean(facts, call.args[0], depth)


def _reduces_to_mean(facts: Facts, call: ast.Call) -> bool:
    """Whether a loss is the mean over its batch, as it is by default."""
    if isinstance(facts.script.definition(call.func), ast.ClassDef):
        return False
    reduction = keyword(call, "reduction")
    if any(one.arg in ("size_average", "reduce", None) for one in call.keywords):
        return False
    return reduction is None or facts.constants.fixed(reduction) == "mean"


def _is_rows(facts: Facts, expression: ast.expr) -> bool:
    """Whether an expression is the number of rows of a batch: `labels.size(0)`, `len(labels)`."""
    for origin in facts.values.origins(expression):
        match origin.node:
            case ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)]):
                continue
            case ast.Call(func=ast.Attribute(attr="numel" | "nelement")):
                continue
            case ast.Call(func=ast.Name(id="len"), args=[rows]):
                whole = facts.kinds.kind(rows) in (Kind.LOADER, Kind.DATASET)
                if not whole and last_name(rows) != "dataset":
                    continue
            case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0)):
                continue
        return False
    return True


def _read(facts: Facts, call: ast.Call) -> ast.expr | None:
    """The value that `.item()` and similar methods are called on."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in READS:
        return None if facts.script.path_of(call.func) else call.func.value
    return None
