"""Rule on results of an evaluation that are those of its last batch."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from onsight_lint.batch_means import BatchSum, added, batch_rows, is_batch_mean
from onsight_lint.edits import indented, show_with_line_above
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import call_owner, own_nodes, start_position

_WHY_STALE = "Every batch adds the same number, which says nothing about the images evaluated."


def _check(context: Context) -> Iterator[Mistake]:
    """`val_loss = loss.item()` in an evaluation, and `val_loss` read after it."""
    for loop in context.loader_loops:
        if not loop.evaluates or not isinstance(loop.node, (ast.For, ast.AsyncFor)):
            continue
        yield from _stale_losses(context, loop)
        ends_early = any(isinstance(node, (ast.Break, ast.Return)) for node in loop_nodes(loop))
        if ends_early:
            continue
        reads = _reads_after(context, loop)
        for name, assignment in _last_assignments(loop.node.body).items():
            value = assignment.value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
                value = value.left  # `loss.item() * batch_size`
            use = _first_use(context, reads[name], assignment)
            if use is not None and is_batch_mean(context, value):
                yield _mistake(context, loop, name, assignment, use)


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


def _stale_losses(context: Context, loop: BatchLoop) -> Iterator[Mistake]:
    """`val_loss += loss.item()` in an evaluation, where only the training assigns `loss`."""
    inside = {loop.node, *loop_nodes(loop)}
    for node in loop_nodes(loop):
        value: ast.AST | None = (added(node) or ("", None))[1]
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            value = value.left
        while isinstance(value, ast.Call):  # `loss.item()`
            value = call_owner(value)
        if not isinstance(value, ast.Name) or not is_batch_mean(context, value):
            continue
        bindings = context.script.scope(value).lookup(value)
        if any(item.node in inside for item in bindings):
            continue
        trained = [item.value for item in bindings if _is_in_training(context, item.node)]
        if trained and trained[-1] is not None:
            line = f"{value.id} = {context.script.code(trained[-1])}  # of this batch"
            statement = context.script.statement(node)
            fixed = show_with_line_above(context.script, statement, line)
            problem = f"{value.id} is from the last training batch: this loop does not assign it"
            yield Mistake(statement, problem, fixed, _WHY_STALE)


def _is_in_training(context: Context, node: ast.AST) -> bool:
    """Return whether code is part of a loop over batches that trains."""
    training = {loop.node for loop in context.loader_loops if loop.trains}
    return any(parent in training for parent in context.script.ancestors(node))


def _last_assignments(body: list[ast.stmt]) -> dict[str, ast.Assign]:
    """The last assignment to each name in the body of a loop."""
    assignments = {}
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                assignments[name] = node
    return assignments


def _reads_after(context: Context, loop: BatchLoop) -> dict[str, list[ast.Name]]:
    """The names that are read after a loop, in its function."""
    begin, inside = start_position(loop.node), set(own_nodes(loop.node))
    reads: dict[str, list[ast.Name]] = defaultdict(list)
    for node in own_nodes(context.script.function(loop.node)):
        if isinstance(node, ast.Name) and node not in inside and start_position(node) > begin:
            reads[node.id] += [node] if isinstance(node.ctx, ast.Load) else []
    return reads


def _first_use(context: Context, reads: list[ast.Name], assignment: ast.Assign) -> ast.Name | None:
    """The first of several reads of a name that may read the value of an assignment."""
    for name in reads:
        bindings = context.script.scope(name).reaching(name)
        if any(binding.node is assignment for binding in bindings):
            return name
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
    problem = f"line {use.lineno} reads {name}, which is from the last batch of {loader} only"
    return Mistake(assignment, problem, fixed)
