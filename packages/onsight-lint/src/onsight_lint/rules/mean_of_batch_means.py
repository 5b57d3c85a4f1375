"""Rule on means of batch means, which give a smaller last batch too much weight."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from onsight_lint.batch_means import (
    BatchSum,
    Division,
    batch_rows,
    batch_sums,
    divisions_after,
    is_batch_mean,
    is_count,
    weighted_line,
)
from onsight_lint.edits import indented, replace_node, show_changed
from onsight_lint.kinds import Kind
from onsight_lint.loops import BatchLoop, is_batch_number, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import FUNCTIONS, key_of, last_name

_WHY_COUNT = "The result is too large by about the batch size: divide by the number of rows."


def _check(context: Context) -> Iterator[Mistake]:
    """Sums of batch means, or numbers of rows, divided by the number of batches."""
    seen: set[ast.AST] = set()
    for loop in context.loader_loops:
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not loop.network_calls:
            continue
        divisions = divisions_after(context, loop)
        yield from _divided_counts(context, loop, divisions)
        if not context.loaders.last_may_be_short(loop.loader):
            continue
        if loop.evaluates:
            yield from _divided_inside(context, loop)
        for batch_sum in batch_sums(context, loop):
            if not loop.evaluates and not _is_accuracy(batch_sum):
                continue
            for division in divisions.get(batch_sum.key, []):
                is_mean = _divides_by_batches(context, loop, batch_sum, division.divisor)
                if is_mean and division.node not in seen:
                    seen.add(division.node)
                    yield _mistake(context, loop, batch_sum, division)
            if _is_unweighted_meter(context, batch_sum) and batch_sum.statement not in seen:
                seen.add(batch_sum.statement)
                yield _meter_mistake(context, loop, batch_sum)


RULE = Rule(
    id="mean-of-batch-means",
    title="A mean of batch means",
    why=(
        "The last batch may be smaller but counts as much as the others, so the result is slightly "
        "wrong. Weight each batch by its rows and divide once by the number of all rows."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _is_accuracy(batch_sum: BatchSum) -> bool:
    return bool(re.search(r"acc(?!um)", batch_sum.key))


def _divided_inside(context: Context, loop: BatchLoop) -> Iterator[Mistake]:
    """`total += loss.item() / len(loader)` in the loop itself."""
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(
                target=target,
                op=ast.Add(),
                value=ast.BinOp(left=left, op=ast.Div(), right=right) as value,
            ) if key_of(target) and is_batch_mean(context, left):
                batch_sum = BatchSum(key_of(target), node, left)
                if _is_batch_count(context, loop, right, batch_sum):
                    rows = batch_rows(context, loop, batch_sum)
                    new = f"{context.script.code(left)} * {rows} / {_all_rows(context, loop)}"
                    change = replace_node(context.script, value, new)
                    fixed = show_changed(context.script, node, [change])
                    yield Mistake(node, _problem(context, loop, batch_sum), fixed)


def _divided_counts(
    context: Context, loop: BatchLoop, divisions: Mapping[str, Sequence[Division]]
) -> Iterator[Mistake]:
    """`correct / len(loader)`, where correct counts rows and a batch has several."""
    creations = context.loaders.creations(loop.loader)
    if not creations or context.loaders.may_have_single_rows(loop.loader):
        return
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(target=target, op=ast.Add(), value=value):
                batch_sum = BatchSum(key_of(target), node, value)
                for division, divisor in divisions.get(batch_sum.key, []):
                    is_whole = not isinstance(context.script.parent(division), ast.BinOp)
                    if divisor is None or not is_whole or not is_count(context, value):
                        continue
                    if _is_batch_count(context, loop, divisor, batch_sum):
                        change = replace_node(context.script, divisor, _all_rows(context, loop))
                        fixed = show_changed(context.script, division, [change])
                        problem = f"{batch_sum.key} counts rows, but is divided by the batches"
                        yield Mistake(division, problem, fixed, _WHY_COUNT)


def _problem(context: Context, loop: BatchLoop, batch_sum: BatchSum) -> str:
    return f"{batch_sum.key} is a mean of batch means over {context.script.code(loop.loader)}"


def _divides_by_batches(
    context: Context, loop: BatchLoop, batch_sum: BatchSum, divisor: ast.expr | None
) -> bool:
    """Return whether a divisor, or a mean without one, counts the batches."""
    if divisor is None:
        return batch_sum.is_list
    return _is_batch_count(context, loop, divisor, batch_sum)


def _is_batch_count(
    context: Context, loop: BatchLoop, expression: ast.expr, batch_sum: BatchSum
) -> bool:
    """Return whether an expression is the number of batches of a loop."""
    if isinstance(expression, ast.Call) and last_name(expression.func) == "max":
        return any(_is_batch_count(context, loop, part, batch_sum) for part in expression.args)
    if isinstance(expression, ast.Call) and last_name(expression.func) == "len" and expression.args:
        counted = expression.args[0]
        if key_of(counted) == batch_sum.key and batch_sum.is_list:
            return True
        is_same = context.script.code(counted) == context.script.code(loop.loader)
        return is_same or context.kinds.kind(counted) is Kind.LOADER
    if isinstance(expression, ast.Name):
        return _is_counter(context, loop, expression) or any(
            isinstance(origin.node, ast.Call)
            and _is_batch_count(context, loop, origin.node, batch_sum)
            for origin in context.values.origins(expression)
        )
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        is_one = isinstance(expression.right, ast.Constant) and expression.right.value == 1
        return is_one and is_batch_number(loop, expression.left)
    return False


def _is_counter(context: Context, loop: BatchLoop, name: ast.Name) -> bool:
    """Return whether a name is incremented once per batch."""
    return any(
        isinstance(node, ast.AugAssign)
        and key_of(node.target) == name.id
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
        and context.script.parent(node) is loop.node
        for node in loop_nodes(loop)
    )


def _is_unweighted_meter(context: Context, batch_sum: BatchSum) -> bool:
    """Return whether means go into a meter whose second argument, the weight, is omitted."""
    statement = batch_sum.statement
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    update = context.values.callee(statement.value)
    if not isinstance(update, FUNCTIONS) or update.name != "update":
        return False
    names = [argument.arg for argument in update.args.args]
    return len(names) == 3 and len(update.args.defaults) == 1 and names[2] in ("n", "num", "count")


def _mistake(context: Context, loop: BatchLoop, batch_sum: BatchSum, division: Division) -> Mistake:
    line = weighted_line(context, batch_sum, batch_rows(context, loop, batch_sum))
    all_rows = _all_rows(context, loop)
    node, divisor = division
    if batch_sum.is_list or divisor is None:
        mean = _whole_mean(context, node)
        change = replace_node(context.script, mean, f"sum({batch_sum.key}) / {all_rows}")
    else:
        change = replace_node(context.script, divisor, all_rows)
    in_loop = indented(context.script, context.script.statement(node), f"{line}  # for each batch")
    fixed = f"{in_loop}\n{show_changed(context.script, node, [change])}"
    return Mistake(node, _problem(context, loop, batch_sum), fixed)


def _whole_mean(context: Context, division: ast.AST) -> ast.AST:
    """The whole of `np.mean(losses).item()` or `sum(losses) / len(losses)`."""
    parent = context.script.parent(division)
    if isinstance(parent, ast.Attribute) and parent.attr == "item":
        return context.script.parent(parent)
    return division


def _meter_mistake(context: Context, loop: BatchLoop, batch_sum: BatchSum) -> Mistake:
    statement = batch_sum.statement
    call = statement.value if isinstance(statement, ast.Expr) else statement
    value = context.script.code(batch_sum.value)
    new = f"{batch_sum.key}.update({value}, {batch_rows(context, loop, batch_sum)})"
    fixed = show_changed(context.script, call, [replace_node(context.script, call, new)])
    problem = f"{batch_sum.key} weights all batches equally, even a smaller last one"
    return Mistake(call, problem, fixed)


def _all_rows(context: Context, loop: BatchLoop) -> str:
    """Code for the number of all rows of a loader."""
    attribute = "sampler" if context.loaders.has_sampler(loop.loader) else "dataset"
    return f"len({context.script.code(loop.loader)}.{attribute})"
