"""Rule on means of batch means, which give a smaller last batch too much weight."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.batch_mean import is_mean
from onsight_lint.batch_sums import (
    BatchSum,
    batch_sums,
    core_key,
    is_list,
    rows_of,
    weighted_line,
)
from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, indented, replaced
from onsight_lint.flow import key_of
from onsight_lint.loops import BatchLoop, is_batch_number, loop_nodes
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import FUNCTIONS, own_nodes, start_place
from onsight_lint.vocabulary import LOOPS, Kind

_WHY = (
    "The last batch may be smaller than the others but counts as much as they do, so the figure "
    "is slightly wrong. Weight each batch by its rows and divide once by the number of all rows."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Sums of batch means divided by the number of batches."""
    seen: set[ast.AST] = set()
    for loop in context.batch_loops:
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not loop.runs:
            continue
        if loop.evaluates and context.loaders.last_may_be_short(loop.loader):
            yield from _divided_inside(context, loop)
        sums = [one for one in batch_sums(context, loop) if loop.evaluates or _is_share(one.key)]
        if sums and context.loaders.last_may_be_short(loop.loader):
            for one in sums:
                for division in _divisions(context, loop, one):
                    if division not in seen:
                        seen.add(division)
                        yield _mistake(context, loop, one, division)
                if _is_meter(context, one) and one.node not in seen:
                    seen.add(one.node)
                    yield _meter_mistake(context, loop, one)


RULE = Rule("mean-of-batch-means", "A mean of batch means", _WHY, _check, LOOPS)


def _divided_inside(context: Context, loop: BatchLoop) -> Iterator[Mistake]:
    """`total += loss.item() / len(loader)` in the loop itself."""
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(
                target=target,
                op=ast.Add(),
                value=ast.BinOp(left=left, op=ast.Div(), right=right) as value,
            ) if key_of(target) and is_mean(context, left):
                one = BatchSum(key_of(target), node, left)
                if _is_batches(context, loop, right, one):
                    rows = rows_of(context, loop, one)
                    all_rows = f"len({context.script.code(loop.loader)}.{_all(context, loop)})"
                    new = f"{context.script.code(left)} * {rows} / {all_rows}"
                    text = fixed(context.script, node, [replaced(value, new)])
                    yield _of_means(context, loop, one, node, text)


def _of_means(
    context: Context, loop: BatchLoop, one: BatchSum, node: ast.AST, text: str
) -> Mistake:
    problem = f"{one.key} is a mean of batch means over {context.script.code(loop.loader)}"
    return Mistake(node, problem, text)


def _is_share(key: str) -> bool:
    return bool(re.search(r"acc(?!um)", key))


def _divisions(context: Context, loop: BatchLoop, one: BatchSum) -> Iterator[ast.AST]:
    """Where a sum of means is divided by the number of batches, after its loop."""
    scope, begin = context.script.function(loop.node), start_place(loop.node)
    inside = set(loop_nodes(loop))
    for node in own_nodes(scope):
        if node in inside or not hasattr(node, "lineno") or start_place(node) < begin:
            continue
        if _divides(context, loop, one, node):
            yield node


def _divides(context: Context, loop: BatchLoop, one: BatchSum, node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            if core_key(left) == one.key and _is_batches(context, loop, right, one):
                return True
        case ast.AugAssign(target=target, op=ast.Div(), value=value):
            return key_of(target) == one.key and _is_batches(context, loop, value, one)
        case ast.Call(func=function, args=[value, *_]) if last_name(function) in (
            "mean",
            "average",
            "fmean",
        ):
            return key_of(value) == one.key and is_list(one)
        case ast.Call(func=ast.Attribute(value=inner, attr="mean"), args=[]):
            names = {key_of(part) for part in ast.walk(inner) if isinstance(part, ast.expr)}
            return isinstance(inner, ast.Call) and one.key in names and is_list(one)
    return False


def _is_batches(context: Context, loop: BatchLoop, expression: ast.expr, one: BatchSum) -> bool:
    """Whether an expression is the number of batches of a loop."""
    if isinstance(expression, ast.Call) and last_name(expression.func) == "max":
        return any(_is_batches(context, loop, part, one) for part in expression.args)
    if isinstance(expression, ast.Call) and last_name(expression.func) == "len" and expression.args:
        counted = expression.args[0]
        if key_of(counted) == one.key and is_list(one):
            return True
        same = context.script.code(counted) == context.script.code(loop.loader)
        return same or context.kinds.kind(counted) is Kind.LOADER
    if isinstance(expression, ast.Name):
        return _is_counter(context, loop, expression) or any(
            isinstance(origin.node, ast.Call) and _is_batches(context, loop, origin.node, one)
            for origin in context.values.origins(expression)
        )
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        plus_one = isinstance(expression.right, ast.Constant) and expression.right.value == 1
        return plus_one and is_batch_number(loop, expression.left)
    return False


def _is_counter(context: Context, loop: BatchLoop, name: ast.Name) -> bool:
    """Whether a name is incremented once per batch."""
    return any(
        isinstance(node, ast.AugAssign)
        and key_of(node.target) == name.id
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
        and context.script.parent(node) is loop.node
        for node in loop_nodes(loop)
    )


def _is_meter(context: Context, one: BatchSum) -> bool:
    """Whether means go into a meter whose second argument, the weight, is left out here."""
    if not isinstance(one.node, ast.Expr) or not isinstance(one.node.value, ast.Call):
        return False
    update = context.values.callee(one.node.value)
    if not isinstance(update, FUNCTIONS) or update.name != "update":
        return False
    names = [argument.arg for argument in update.args.args]
    return len(names) == 3 and len(update.args.defaults) == 1 and names[2] in ("n", "num", "count")


def _mistake(context: Context, loop: BatchLoop, one: BatchSum, division: ast.AST) -> Mistake:
    rows = rows_of(context, loop, one)
    line = weighted_line(context, one, rows)
    all_rows = f"len({context.script.code(loop.loader)}.{_all(context, loop)})"
    statement = context.script.source(division).statement(division)
    if is_list(one):
        new = f"sum({one.key}) / {all_rows}"
        text = fixed(context.script, division, [replaced(_whole(context, division), new)])
    else:
        count = division.right if isinstance(division, ast.BinOp) else None
        count = division.value if isinstance(division, ast.AugAssign) else count
        edits = [replaced(count, all_rows)] if count is not None else []
        text = fixed(context.script, division, edits)
    comment = "  # for each batch"
    text = f"{indented(context.script, statement, line)}{comment}\n{text}"
    return _of_means(context, loop, one, division, text)


def _whole(context: Context, division: ast.AST) -> ast.AST:
    """The whole of `np.mean(losses).item()` or `sum(losses) / len(losses)`."""
    parent = context.script.parent(division)
    if isinstance(parent, ast.Attribute) and parent.attr == "item":
        return context.script.parent(parent)
    return division


def _meter_mistake(context: Context, loop: BatchLoop, one: BatchSum) -> Mistake:
    call = one.node.value if isinstance(one.node, ast.Expr) else one.node
    value = context.script.code(one.value)
    new = f"{one.key}.update({value}, {rows_of(context, loop, one)})"
    text = fixed(context.script, call, [replaced(call, new)])
    problem = f"{one.key} gives every batch the same weight, even a smaller last one"
    return Mistake(call, problem, text)


def _all(context: Context, loop: BatchLoop) -> str:
    return "sampler" if context.loaders.has_sampler(loop.loader) else "dataset"
