"""Rule on sums of batch means that are divided by the number of rows."""

import ast
from collections.abc import Iterator

from onsight_lint.batch_means import (
    BatchSum,
    batch_rows,
    batch_sums,
    divisions_after,
    weighted_line,
)
from onsight_lint.edits import indented
from onsight_lint.kinds import Kind
from onsight_lint.loops import BatchLoop
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import last_name


def _check(context: Context) -> Iterator[Mistake]:
    """`total += loss.item()` for each batch, then `total / len(loader.dataset)`."""
    seen: set[ast.AST] = set()
    for loop in context.loader_loops:
        is_single = bool(context.loaders.creations(loop.loader))
        is_single = is_single and not context.loaders.has_several_rows(loop.loader)
        if not loop.network_calls or is_single:
            continue
        divided = {
            key
            for key, items in divisions_after(context, loop).items()
            for _, divisor in items
            if divisor is not None and _is_row_count(context, loop, divisor)
        }
        for batch_sum in batch_sums(context, loop):
            statement = batch_sum.statement
            is_sum = isinstance(statement, ast.AugAssign) and not batch_sum.is_count
            if is_sum and batch_sum.key in divided and statement not in seen:
                seen.add(statement)
                yield _mistake(context, loop, batch_sum)


RULE = Rule(
    id="loss-divided-by-rows",
    title="A sum of batch means divided by all rows",
    why=(
        "The loss of a batch is already a mean over its rows, so the result is too small by a "
        "factor of about the batch size. Multiply each loss by the number of rows in its batch."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _is_row_count(context: Context, loop: BatchLoop, expression: ast.expr) -> bool:
    """Return whether an expression counts the rows of the loop's data: `len(loader.dataset)`."""
    origins = context.values.origins(expression)
    return bool(origins) and all(
        not origin.steps and _counts_rows(context, loop, origin.node) for origin in origins
    )


def _counts_rows(context: Context, loop: BatchLoop, node: ast.AST) -> bool:
    match node:
        case ast.Call(
            func=ast.Name(id="len"),
            args=[ast.Attribute(value=loader, attr="dataset" | "sampler")],
        ):
            is_same = context.script.code(loader) == context.script.code(loop.loader)
            return is_same or context.kinds.kind(loader) is Kind.LOADER
        case ast.Call(func=ast.Name(id="len"), args=[counted]):
            return context.kinds.kind(counted) is Kind.DATASET and last_name(counted) != ""
    return False


def _mistake(context: Context, loop: BatchLoop, batch_sum: BatchSum) -> Mistake:
    line = weighted_line(context, batch_sum, batch_rows(context, loop, batch_sum))
    problem = f"{batch_sum.key} is a sum of batch means, but is divided by the number of rows"
    fixed = indented(context.script, batch_sum.statement, line)
    return Mistake(batch_sum.statement, problem, fixed)
