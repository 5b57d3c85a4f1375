"""Sums and lists of what a loss or score is for each batch, gathered in a loop over batches."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from onsight_lint.batch_mean import READS, is_mean
from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.flow import key_of
from onsight_lint.loops import BatchLoop, loop_nodes, loop_rows


@dataclass(frozen=True)
class BatchSum:
    """A sum or list of batch means: its name, the statement in the loop, the value added."""

    key: str
    node: ast.stmt
    value: ast.expr


def batch_sums(context: Context, loop: BatchLoop) -> Iterator[BatchSum]:
    """What a loop adds up, or puts into lists and meters, of the means of its batches."""
    for node in loop_nodes(loop):
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
                continue
        if key and is_mean(context, value):
            yield BatchSum(key, node, value)


def is_list(one: BatchSum) -> bool:
    """Whether means are collected in a list."""
    return isinstance(one.node, ast.Expr) and last_name(_call(one.node)) == "append"


def _call(statement: ast.Expr) -> ast.AST:
    return statement.value.func if isinstance(statement.value, ast.Call) else statement.value


def core_key(expression: ast.expr) -> str:
    """The name in `100 * total.item()`."""
    while True:
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Mult):
            constant = isinstance(expression.left, ast.Constant)
            expression = expression.right if constant else expression.left
        elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            expression = expression.func.value
        elif isinstance(expression, ast.Call) and expression.args:
            if last_name(expression.func) not in ("float", "sum"):
                return ""
            expression = expression.args[0]
        else:
            return key_of(expression)


def weighted_line(context: Context, one: BatchSum, rows: str) -> str:
    """The line in the loop, each mean weighted by the rows of its batch."""
    value = context.script.code(one.value)
    if isinstance(one.value, ast.BinOp) and not isinstance(one.value.op, (ast.Mult, ast.Div)):
        value = f"({value})"
    line = fixed(context.script, one.node, [replaced(one.value, f"{value} * {rows}")])
    return line.strip()


def rows_of(context: Context, loop: BatchLoop, one: BatchSum) -> str:
    """The number of rows of a batch, in the script's own names."""
    value: ast.AST = one.value
    for _ in range(8):
        match value:
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in READS:
                value = inner
        if isinstance(value, ast.Name):
            made = context.script.scope(value).reaching(value)
            inside = [one.value for one in made if one.value is not None and not one.steps]
            value = inside[0] if inside else value
    if isinstance(value, ast.Call):
        names = [part.id for part in value.args[1:] if isinstance(part, ast.Name)]
        if names:
            return f"len({names[0]})"
    return loop_rows(context, loop)
