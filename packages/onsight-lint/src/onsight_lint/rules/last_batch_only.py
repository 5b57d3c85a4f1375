"""Rule on results of an evaluation that are those of its last batch."""

import ast
from collections.abc import Iterator

from onsight_lint.batch_means import BatchSum, batch_rows, is_batch_mean
from onsight_lint.edits import indented
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import own_nodes, start_position


def _check(context: Context) -> Iterator[Mistake]:
    """`val_loss = loss.item()` in an evaluation, and `val_loss` read after it."""
    for loop in context.loader_loops:
        if not loop.evaluates or not isinstance(loop.node, (ast.For, ast.AsyncFor)):
            continue
        ends_early = any(isinstance(node, (ast.Break, ast.Return)) for node in loop_nodes(loop))
        for node in loop.node.body if not ends_early else ():
            match node:
                case ast.Assign(targets=[ast.Name() as name], value=value):
                    use = _use_after(context, loop, name, node)
                    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
                        value = value.left  # `loss.item() * batch_size`
                    if use is not None and is_batch_mean(context, value):
                        yield _mistake(context, loop, name.id, node, use)


RULE = Rule(
    id="last-batch-only",
    title="A result of the last batch only",
    why=(
        "Each batch replaces the value of the one before, so what is reported or compared after "
        "the loop says nothing about all other batches."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _use_after(
    context: Context, loop: BatchLoop, name: ast.Name, assignment: ast.Assign
) -> ast.Name | None:
    """Where a value that is assigned in a loop is first read after it, in the same function."""
    inside = set(own_nodes(loop.node))
    scopes, begin = context.script.scope(name), start_position(loop.node)
    for node in own_nodes(context.script.function(loop.node)):
        if isinstance(node, ast.Name) and node.id == name.id and node not in inside:
            is_read = isinstance(node.ctx, ast.Load) and start_position(node) > begin
            if is_read and any(item.node is assignment for item in scopes.reaching(node)):
                return node
    return None


def _mistake(
    context: Context, loop: BatchLoop, name: str, assignment: ast.Assign, use: ast.Name
) -> Mistake:
    value, loader = context.script.code(assignment.value), context.script.code(loop.loader)
    rows = batch_rows(context, loop, BatchSum(name, assignment, assignment.value))
    lines = (
        f"{name}_sum += {value} * {rows}  # for each batch",
        f"{name} = {name}_sum / len({loader}.dataset)  # after the loop",
    )
    fixed = "\n".join(indented(context.script, assignment, line) for line in lines)
    problem = f"line {use.lineno} reads {name}, which is that of the last batch of {loader} alone"
    return Mistake(assignment, problem, fixed)
