"""Rule on means of batch means, which give a smaller last batch too much weight."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.batch_means import (
    BatchSum,
    Division,
    averaged_list,
    batch_rows,
    batch_sums,
    divisions_after,
    is_batch_count,
    is_batch_mean,
    weighted_line,
)
from onsight_lint.edits import indented, replace_node, show_changed, show_replaced
from onsight_lint.lightning import EPOCH_END, step_loaders, step_name
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.scopes import EACH
from onsight_lint.syntax import FUNCTIONS, Function, call_owner, key_of, last_name, own_nodes

_WEIGHTED_METERS = {"AverageMeter", "MeanMetric"}  # of other libraries; the weight is 1 by default
_WHY_COUNT = (
    "The result is too large by a factor of about the batch size: divide by the number of rows."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Sums of batch means, or numbers of rows, divided by the number of batches."""
    seen: set[ast.AST] = set()
    for loop in context.loader_loops:
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not loop.network_calls:
            continue
        is_short = context.loaders.last_may_be_short(loop.loader)
        if loop.evaluates and is_short:
            yield from _divided_inside(context, loop)
        divisions = divisions_after(context, loop)
        for batch_sum in batch_sums(context, loop):
            if batch_sum.is_count:
                is_wrong = context.loaders.has_several_rows(loop.loader)
            else:
                is_wrong = is_short and (loop.evaluates or _is_accuracy(batch_sum.key))
            means = batch_sum.key if batch_sum.is_list else ""
            for division in divisions.pop(batch_sum.key, []) if is_wrong else ():
                node, divisor = division
                if node in seen or (batch_sum.is_count and _is_divided_again(context, node)):
                    continue
                if is_batch_count(context, loop, divisor, means):
                    seen.add(node)
                    yield _mistake(context, loop, batch_sum, division)
            is_new = is_wrong and batch_sum.statement not in seen
            if is_new and _is_unweighted_meter(context, batch_sum):
                seen.add(batch_sum.statement)
                yield _meter_mistake(context, loop, batch_sum)
    hooks = [node for node in context.script.nodes(*FUNCTIONS) if EPOCH_END.match(node.name)]
    for phase in ("train", "validation", "test") if hooks else ():
        if any(map(context.loaders.last_may_be_short, step_loaders(context, phase))):
            for hook in hooks:
                yield from _averaged_outputs(context, hook, phase) if phase in hook.name else ()


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


def _is_accuracy(name: str) -> bool:
    return bool(re.search(r"acc(?!um)|correct", name))


def _is_divided_again(context: Context, division: ast.AST) -> bool:
    """Return whether a quotient is divided once more: `correct / len(loader) / batch_size`."""
    match context.script.parent(division):
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return left is division and not isinstance(right, ast.Constant)
    return False


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
                if is_batch_count(context, loop, right):
                    rows = batch_rows(context, loop, batch_sum)
                    new = f"{context.script.code(left)} * {rows} / {_all_rows(context, loop)}"
                    fixed = show_replaced(context.script, value, new)
                    yield Mistake(node, _problem(context, loop, batch_sum), fixed)


def _averaged_outputs(context: Context, function: Function, phase: str) -> Iterator[Mistake]:
    """`torch.stack([x["loss"] for x in outputs]).mean()` in `validation_epoch_end`."""
    step = step_name(phase)
    problem = f"the means of the batches from {step} are averaged as if all had the same size"
    for node in own_nodes(function):
        values = averaged_list(node)
        if values is not None and _are_means_of(context, values, function):
            code = context.script.code(context.script.statement(node))
            if phase != "train" or _is_accuracy(code):
                yield Mistake(node, problem, _show_weighted(context, node, values, step))
        if isinstance(node, ast.For) and phase != "train":
            loop = BatchLoop(node, node.iter, [])
            divisions = divisions_after(context, loop)
            for batch_sum in batch_sums(context, loop):
                for division in divisions.pop(batch_sum.key, []) if not batch_sum.is_count else []:
                    if is_batch_count(context, loop, division.divisor):
                        fixed = _show_summed(context, division, batch_sum, step)
                        yield Mistake(division.node, problem, fixed)


def _are_means_of(context: Context, values: ast.expr, function: Function) -> bool:
    """Return whether a list in a function holds batch means that other functions compute."""
    origins = context.values.origins(values, (EACH,))
    return bool(origins) and all(
        isinstance(origin.node, ast.expr)
        and not origin.steps
        and context.script.function(origin.node) is not function
        and _is_given_batch(context.script.function(origin.node))
        and is_batch_mean(context, origin.node)
        for origin in origins
    )


def _is_given_batch(function: ast.AST) -> bool:
    """Return whether a function uses an argument, unlike one that plays episodes of a game."""
    names = {item.arg for item in function.args.args[1:]} if isinstance(function, FUNCTIONS) else ()
    return any(isinstance(node, ast.Name) and node.id in names for node in own_nodes(function))


def _show_weighted(context: Context, node: ast.AST, values: ast.expr, step: str) -> str:
    mean = _whole_mean(context, node)
    new = f"sum(m * n for m, n in zip({context.script.code(values)}, rows)) / sum(rows)"
    if isinstance(context.script.parent(mean), (ast.BinOp, ast.Attribute)):
        new = f"({new})"
    comment = f"# rows: of each batch, which {step} has to return as well"
    above = indented(context.script, node, comment)
    return f"{above}\n{show_replaced(context.script, mean, new)}"


def _show_summed(context: Context, division: Division, batch_sum: BatchSum, step: str) -> str:
    node, divisor = division
    changes = [replace_node(context.script, divisor, "rows")] if divisor is not None else []
    line = f"{weighted_line(context, batch_sum, 'n')}  # n: rows of the batch, from {step}"
    in_loop = indented(context.script, node, line)
    return f"{in_loop}\n{show_changed(context.script, node, changes)}  # rows: the sum of all n"


def _problem(context: Context, loop: BatchLoop, batch_sum: BatchSum) -> str:
    return f"{batch_sum.key} is a mean of batch means over {context.script.code(loop.loader)}"


def _is_unweighted_meter(context: Context, batch_sum: BatchSum) -> bool:
    """Return whether means go into a meter whose second argument, the weight, is omitted."""
    statement = batch_sum.statement
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    update, owner = context.values.callee(statement.value), call_owner(statement.value)
    if update is None and owner is not None:  # from a library or another folder
        made = [last_name(origin.node) for origin in context.values.origins(owner)]
        return bool(made) and set(made) <= _WEIGHTED_METERS
    if not isinstance(update, FUNCTIONS) or update.name != "update":
        return False
    names = [argument.arg for argument in update.args.args]
    return len(names) == 3 and len(update.args.defaults) == 1 and names[2] in ("n", "num", "count")


def _mistake(context: Context, loop: BatchLoop, batch_sum: BatchSum, division: Division) -> Mistake:
    line = weighted_line(context, batch_sum, batch_rows(context, loop, batch_sum))
    all_rows = _all_rows(context, loop)
    node, divisor = division
    if batch_sum.is_list or divisor is None:
        mean = f"sum({batch_sum.key}) / {all_rows}"
        fixed = show_replaced(context.script, _whole_mean(context, node), mean)
    else:
        fixed = show_replaced(context.script, divisor, all_rows)
    if batch_sum.is_count:
        problem = f"{batch_sum.key} counts rows, but is divided by the number of batches"
        return Mistake(node, problem, fixed, _WHY_COUNT)
    in_loop = indented(context.script, node, f"{line}  # for each batch")
    return Mistake(node, _problem(context, loop, batch_sum), f"{in_loop}\n{fixed}")


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
    problem = f"{batch_sum.key} weights all batches equally, even a smaller last one"
    return Mistake(call, problem, show_replaced(context.script, call, new))


def _all_rows(context: Context, loop: BatchLoop) -> str:
    """Code for the number of all rows of a loader."""
    attribute = "sampler" if context.loaders.has_sampler(loop.loader) else "dataset"
    return f"len({context.script.code(loop.loader)}.{attribute})"
