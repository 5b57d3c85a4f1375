"""Rule on sums of batch means that are divided by the number of rows."""

import ast
from collections.abc import Iterator

from onsight_lint.batch_sums import BatchSum, batch_sums, core_key, is_list, rows_of, weighted_line
from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import indented
from onsight_lint.flow import key_of
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import own_nodes, start_place
from onsight_lint.vocabulary import LOOPS, Kind

_WHY = (
    "The loss of a batch is already a mean over its rows, so the figure is too small by about the "
    "batch size, and changes with it. Multiply each by the rows of its batch."
)


def _check(context: Context) -> Iterator[Mistake]:
    """`total += loss.item()` for each batch, then `total / len(loader.dataset)`."""
    seen: set[ast.AST] = set()
    for loop in context.batch_loops:
        if not loop.runs or _is_single(context, loop):
            continue
        for one in batch_sums(context, loop):
            if one.node in seen or is_list(one) or not isinstance(one.node, ast.AugAssign):
                continue
            if any(_divides(context, loop, one, node) for node in _later(context, loop)):
                seen.add(one.node)
                yield _mistake(context, loop, one)


RULE = Rule("loss-divided-by-rows", "A sum of batch means divided by all rows", _WHY, _check, LOOPS)


def _is_single(context: Context, loop: BatchLoop) -> bool:
    """Whether batches may be of one row, where sum and mean are the same."""
    made = context.loaders.made(loop.loader)
    return any(context.loaders.fixed(call, "batch_size", 1) == 1 for call in made)


def _later(context: Context, loop: BatchLoop) -> Iterator[ast.AST]:
    inside = set(loop_nodes(loop))
    for node in own_nodes(context.script.function(loop.node)):
        if node not in inside and start_place(node) > start_place(loop.node):
            yield node


def _divides(context: Context, loop: BatchLoop, one: BatchSum, node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return core_key(left) == one.key and _is_rows(context, loop, right)
        case ast.AugAssign(target=target, op=ast.Div(), value=value):
            return key_of(target) == one.key and _is_rows(context, loop, value)
    return False


def _is_rows(context: Context, loop: BatchLoop, expression: ast.expr) -> bool:
    """Whether an expression is the number of rows of the loop's data: `len(loader.dataset)`."""
    origins = context.values.origins(expression)
    return bool(origins) and all(
        not one.steps and _counts_rows(context, loop, one.node) for one in origins
    )


def _counts_rows(context: Context, loop: BatchLoop, node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            held = isinstance(counted, ast.Attribute) and counted.attr in ("dataset", "sampler")
            if isinstance(counted, ast.Attribute) and held:
                mine = context.script.code(counted.value) == context.script.code(loop.loader)
                return mine or context.kinds.kind(counted.value) is Kind.LOADER
            return context.kinds.kind(counted) is Kind.DATASET and last_name(counted) != ""
    return False


def _mistake(context: Context, loop: BatchLoop, one: BatchSum) -> Mistake:
    line = weighted_line(context, one, rows_of(context, loop, one))
    problem = f"{one.key} adds up means of batches, but is divided by the number of rows"
    return Mistake(one.node, problem, indented(context.script, one.node, line))
