"""Rule on two lists that get out of step when an image is skipped."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import indented
from onsight_lint.flow import key_of
from onsight_lint.rule import Mistake
from onsight_lint.source import own_nodes, start_place
from onsight_lint.vocabulary import word_set

_WHY = (
    "After the first skipped image, every row of one list is paired with the wrong row of the "
    "other. Append to both in the same place."
)
_PAIRS = word_set(
    "zip TensorDataset train_test_split accuracy_score confusion_matrix classification_report "
    "DataFrame StratifiedShuffleSplit"
)


@dataclass(frozen=True)
class _Append:
    """`rows.append(value)` as a statement, and the name of the list."""

    key: str
    node: ast.Expr


def appended(context: Context) -> Iterator[Mistake]:
    """A label that is always appended, and its image only if it can be read."""
    for source in context.script.sources:
        for loop in source.all(ast.For, ast.AsyncFor):
            yield from _in_loop(context, loop)


def _in_loop(context: Context, loop: ast.For | ast.AsyncFor) -> Iterator[Mistake]:
    always = [one for one in map(_append, loop.body) if one is not None]
    for sure in always:
        place = next(n for n, part in enumerate(loop.body) if part is sure.node)
        for late, skipped in _later(context, loop, place):
            if late.key == sure.key or not skipped:
                continue
            loose = skipped == "if"
            if _belong_together(context, loop, sure.key, late.key, loose):
                yield _mistake(context, sure, late)
                break


def _append(statement: ast.stmt) -> _Append | None:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[_])):
            return _Append(key_of(owner), statement) if key_of(owner) else None
    return None


def _later(
    context: Context, loop: ast.For | ast.AsyncFor, place: int
) -> Iterator[tuple[_Append, str]]:
    """The appends after a statement of a loop, with what may skip each: "" if nothing."""
    skip = ""
    for statement in loop.body[place + 1 :]:
        if (one := _append(statement)) is not None:
            yield one, skip
        elif isinstance(statement, ast.Try):
            quiet = any(not _leaves(handler.body) for handler in statement.handlers)
            for inner in (*statement.body, *statement.orelse):
                if (one := _append(inner)) is not None:
                    yield one, skip or ("try" if quiet else "")
            if any(_continues(handler.body) for handler in statement.handlers):
                skip = "try"
        elif isinstance(statement, ast.If):
            if _continues(statement.body):
                skip = "try"
            elif not statement.orelse and _asks_for_row(context, loop, statement.test):
                for inner in statement.body:
                    if (one := _append(inner)) is not None:
                        yield one, skip or "if"


def _asks_for_row(context: Context, loop: ast.For | ast.AsyncFor, test: ast.expr) -> bool:
    """Whether a test asks if a row can be used: whether a file exists, an image was read."""
    if not any(_asks_for_file(one) for one in ast.walk(test)):
        return False
    inside = {loop, *own_nodes(loop)}
    names = (one for one in ast.walk(test) if isinstance(one, ast.Name))
    return any(
        binding.node in inside
        for name in names
        for binding in context.script.scope(name).reaching(name)
    )


def _asks_for_file(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=function):
            return last_name(function) in ("exists", "isfile", "is_file", "endswith", "is_image")
    return False


def _leaves(body: list[ast.stmt]) -> bool:
    """Whether a handler ends the loop or the script, or fixes the lists."""
    nodes = [one for part in body for one in (part, *own_nodes(part))]
    fixes = any(isinstance(one, ast.Call) and last_name(one) in ("pop", "append") for one in nodes)
    return fixes or any(isinstance(one, (ast.Raise, ast.Return, ast.Break)) for one in nodes)


def _continues(body: list[ast.stmt]) -> bool:
    nodes = [one for part in body for one in (part, *own_nodes(part))]
    fixes = any(isinstance(one, ast.Call) and last_name(one) in ("pop", "append") for one in nodes)
    return not fixes and any(isinstance(one, ast.Continue) for one in nodes)


def _belong_together(context: Context, loop: ast.AST, one: str, other: str, strictly: bool) -> bool:
    """Whether two lists are paired: zipped, put in a dataset, returned, or indexed alike."""
    scope = context.script.function(loop)
    home = context.script.enclosing_class(loop) if one.startswith("self.") else None
    inside = set(own_nodes(loop))
    places: dict[str, set[str]] = {one: set(), other: set()}
    for node in ast.walk(home) if home is not None else own_nodes(scope):
        if node in inside:
            continue
        if isinstance(node, ast.Subscript) and key_of(node.value) in places:
            places[key_of(node.value)].add(context.script.code(node.slice))
        if start_place(node) < start_place(loop):
            continue
        if {one, other} <= _met(node, strictly):
            return True
    return bool(places[one] & places[other])


def _met(node: ast.AST, strictly: bool) -> set[str]:
    """The lists that a node pairs."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in _PAIRS or (name[:1].isupper() and not strictly):
            return _given(node)
    if isinstance(node, ast.Return) and node.value is not None and not strictly:
        return {key_of(part) for part in _parts(node.value)}
    return set()


def _given(call: ast.Call) -> set[str]:
    given = [*call.args, *(one.value for one in call.keywords)]
    return {key_of(part) for value in given for part in _parts(value)}


def _parts(value: ast.AST) -> Iterator[ast.expr]:
    return (one for one in ast.walk(value) if isinstance(one, ast.expr))


def _mistake(context: Context, sure: _Append, late: _Append) -> Mistake:
    lines = [context.script.code(late.node), context.script.code(sure.node)]
    text = "\n".join(indented(context.script, late.node, line) for line in lines)
    problem = f"{sure.key} grows for every row, {late.key} only for rows that are not skipped"
    return Mistake(sure.node, problem, text, _WHY)
