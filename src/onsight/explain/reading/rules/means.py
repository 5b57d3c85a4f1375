"""Rule on means of batch means, which give a smaller last batch too much weight."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import fixed, found, indented, replaced
from onsight.explain.reading.flow import key_of
from onsight.explain.reading.loops import BatchLoop, is_place, loop_nodes, loop_rows
from onsight.explain.reading.rules.batchmean import READS, is_mean
from onsight.explain.reading.source import FUNCTIONS, own_nodes, start_place
from onsight.explain.reading.vocabulary import Kind

_WHY = (
    "The last batch may be smaller than the others and still counts as much as they do, so the "
    "figure is slightly wrong. Weigh each batch by its rows and divide once by all rows."
)


@dataclass(frozen=True)
class _Sum:
    """A sum, or list, of batch means: its name, the statement in the loop, the value gathered."""

    key: str
    node: ast.stmt
    value: ast.expr


def batch_means(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """Sums of batch means divided by the number of batches."""
    told: set[ast.AST] = set()
    for loop in loops:
        if not isinstance(loop.node, (ast.For, ast.AsyncFor)) or not loop.runs:
            continue
        if loop.evaluates and facts.loaders.last_may_be_short(loop.loader):
            yield from _divided_inside(facts, loop)
        sums = [one for one in _sums(facts, loop) if loop.evaluates or _is_share(one.key)]
        if sums and facts.loaders.last_may_be_short(loop.loader):
            for one in sums:
                for division in _divisions(facts, loop, one):
                    if division not in told:
                        told.add(division)
                        yield _finding(facts, loop, one, division)
                if _is_meter(facts, one) and one.node not in told:
                    told.add(one.node)
                    yield _meter_finding(facts, loop, one)


def _sums(facts: Facts, loop: BatchLoop) -> Iterator[_Sum]:
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
        if key and is_mean(facts, value):
            yield _Sum(key, node, value)


def _divided_inside(facts: Facts, loop: BatchLoop) -> Iterator[Finding]:
    """`total += loss.item() / len(loader)` in the loop itself."""
    for node in loop_nodes(loop):
        match node:
            case ast.AugAssign(
                target=target,
                op=ast.Add(),
                value=ast.BinOp(left=left, op=ast.Div(), right=right) as value,
            ) if key_of(target) and is_mean(facts, left):
                one = _Sum(key_of(target), node, left)
                if _is_batches(facts, loop, right, one):
                    rows = _rows(facts, loop, one)
                    all_rows = f"len({facts.script.words(loop.loader)}.{_all(facts, loop)})"
                    new = f"{facts.script.words(left)} * {rows} / {all_rows}"
                    text = fixed(facts.script, node, [replaced(value, new)])
                    yield _told(facts, loop, one, node, text)


def _told(facts: Facts, loop: BatchLoop, one: _Sum, node: ast.AST, text: str) -> Finding:
    problem = f"{one.key} is a mean of batch means over {facts.script.words(loop.loader)}"
    return found(facts.script, node, "mean-of-batch-means", problem, _WHY, text)


def _is_share(key: str) -> bool:
    return bool(re.search(r"acc", key))


def _divisions(facts: Facts, loop: BatchLoop, one: _Sum) -> Iterator[ast.AST]:
    """Where a sum of means is divided by the number of batches, behind its loop."""
    scope, begin = facts.script.function(loop.node), start_place(loop.node)
    inside = set(loop_nodes(loop))
    for node in own_nodes(scope):
        if node in inside or not hasattr(node, "lineno") or start_place(node) < begin:
            continue
        if _divides(facts, loop, one, node):
            yield node


def _divides(facts: Facts, loop: BatchLoop, one: _Sum, node: ast.AST) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            if _core(left) == one.key and _is_batches(facts, loop, right, one):
                return True
        case ast.AugAssign(target=target, op=ast.Div(), value=value):
            return key_of(target) == one.key and _is_batches(facts, loop, value, one)
        case ast.Call(func=function, args=[value, *_]) if last_name(function) in (
            "mean",
            "average",
            "fmean",
        ):
            return key_of(value) == one.key and _is_list(one)
        case ast.Call(func=ast.Attribute(value=inner, attr="mean"), args=[]):
            names = {key_of(part) for part in ast.walk(inner) if isinstance(part, ast.expr)}
            return isinstance(inner, ast.Call) and one.key in names and _is_list(one)
    return False


def _is_list(one: _Sum) -> bool:
    """Whether means are gathered in a list."""
    return isinstance(one.node, ast.Expr) and last_name(_call(one.node)) == "append"


def _call(statement: ast.Expr) -> ast.AST:
    return statement.value.func if isinstance(statement.value, ast.Call) else statement.value


def _core(expression: ast.expr) -> str:
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


def _is_batches(facts: Facts, loop: BatchLoop, expression: ast.expr, one: _Sum) -> bool:
    """Whether an expression is the number of batches of a loop."""
    if isinstance(expression, ast.Call) and last_name(expression.func) == "max":
        return any(_is_batches(facts, loop, part, one) for part in expression.args)
    if isinstance(expression, ast.Call) and last_name(expression.func) == "len" and expression.args:
        counted = expression.args[0]
        if key_of(counted) == one.key and _is_list(one):
            return True
        same = facts.script.words(counted) == facts.script.words(loop.loader)
        return same or facts.kinds.kind(counted) is Kind.LOADER
    if isinstance(expression, ast.Name):
        return _is_counter(facts, loop, expression) or any(
            isinstance(origin.node, ast.Call) and _is_batches(facts, loop, origin.node, one)
            for origin in facts.values.origins(expression)
        )
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add):
        plus_one = isinstance(expression.right, ast.Constant) and expression.right.value == 1
        return plus_one and is_place(loop, expression.left)
    return False


def _is_counter(facts: Facts, loop: BatchLoop, name: ast.Name) -> bool:
    """Whether a name is raised by one for each batch."""
    return any(
        isinstance(node, ast.AugAssign)
        and key_of(node.target) == name.id
        and isinstance(node.value, ast.Constant)
        and node.value.value == 1
        and facts.script.parent(node) is loop.node
        for node in loop_nodes(loop)
    )


def _is_meter(facts: Facts, one: _Sum) -> bool:
    """Whether means go into a meter that weighs by a second argument, left out here."""
    if not isinstance(one.node, ast.Expr) or not isinstance(one.node.value, ast.Call):
        return False
    update = facts.values.callee(one.node.value)
    if not isinstance(update, FUNCTIONS) or update.name != "update":
        return False
    names = [argument.arg for argument in update.args.args]
    return len(names) == 3 and len(update.args.defaults) == 1 and names[2] in ("n", "num", "count")


def _finding(facts: Facts, loop: BatchLoop, one: _Sum, division: ast.AST) -> Finding:
    rows = _rows(facts, loop, one)
    line = _weighed(facts, one, rows)
    all_rows = f"len({facts.script.words(loop.loader)}.{_all(facts, loop)})"
    statement = facts.script.source(division).statement(division)
    if _is_list(one):
        new = f"sum({one.key}) / {all_rows}"
        text = fixed(facts.script, division, [replaced(_whole(facts, division), new)])
    else:
        count = division.right if isinstance(division, ast.BinOp) else None
        count = division.value if isinstance(division, ast.AugAssign) else count
        edits = [replaced(count, all_rows)] if count is not None else []
        text = fixed(facts.script, division, edits)
    comment = "  # for each batch"
    text = f"{indented(facts.script, statement, line)}{comment}\n{text}"
    return _told(facts, loop, one, division, text)


def _whole(facts: Facts, division: ast.AST) -> ast.AST:
    """The whole of `np.mean(losses)` or `sum(losses) / len(losses)`."""
    parent = facts.script.parent(division)
    if isinstance(parent, ast.Attribute) and parent.attr == "item":
        return facts.script.parent(parent)
    return division


def _meter_finding(facts: Facts, loop: BatchLoop, one: _Sum) -> Finding:
    call = one.node.value if isinstance(one.node, ast.Expr) else one.node
    value = facts.script.words(one.value)
    new = f"{one.key}.update({value}, {_rows(facts, loop, one)})"
    text = fixed(facts.script, call, [replaced(call, new)])
    problem = f"{one.key} weighs every batch alike, also a smaller last one"
    return found(facts.script, call, "mean-of-batch-means", problem, _WHY, text)


def _weighed(facts: Facts, one: _Sum, rows: str) -> str:
    """The line in the loop, each mean weighed by the rows of its batch."""
    value = facts.script.words(one.value)
    if isinstance(one.value, ast.BinOp) and not isinstance(one.value.op, (ast.Mult, ast.Div)):
        value = f"({value})"
    line = fixed(facts.script, one.node, [replaced(one.value, f"{value} * {rows}")])
    return line.strip()


def _rows(facts: Facts, loop: BatchLoop, one: _Sum) -> str:
    """The number of rows of a batch in the user's names."""
    value: ast.AST = one.value
    for _ in range(8):
        match value:
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in READS:
                value = inner
        if isinstance(value, ast.Name):
            made = facts.script.scope(value).reaching(value)
            inside = [one.value for one in made if one.value is not None and not one.steps]
            value = inside[0] if inside else value
    if isinstance(value, ast.Call):
        names = [part.id for part in value.args[1:] if isinstance(part, ast.Name)]
        if names:
            return f"len({names[0]})"
    return loop_rows(facts, loop)


def _all(facts: Facts, loop: BatchLoop) -> str:
    return "sampler" if facts.loaders.has_sampler(loop.loader) else "dataset"
