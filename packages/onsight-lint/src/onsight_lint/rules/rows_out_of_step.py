"""Rule on rows that are paired with the wrong ones, because the order of two lists differs.

The causes are lists of which only some skip images, predictions of a shuffled loader, and unsorted
folders (`listings.py`).
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from onsight_lint.edits import indented, show_replaced
from onsight_lint.listings import find_paired_listings, lists_folder
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import (
    argument_values,
    block_nodes,
    expressions_in,
    key_of,
    last_name,
    own_nodes,
    start_position,
    word_set,
)

_PAIRING_CALLS = word_set(
    "zip TensorDataset train_test_split accuracy_score confusion_matrix classification_report "
    "DataFrame StratifiedShuffleSplit"
)
_COMPARING_NAME = re.compile(
    r"zip|score|matrix|report|DataFrame|array_equal|\beq\b|roc|curve",
)
_DATASET_NAME = re.compile(r"dataset|data$|_set$|(^|_)ds$|testset|valset")
_DATASET_LISTS = word_set(
    "targets samples imgs labels filenames files paths image_paths img_paths image_files file_paths"
)
_WHY_SKIPPED = (
    "After the first skipped image, every row of one list is paired with the wrong row of the "
    "other. Append to both in the same place."
)
_WHY_SHUFFLED = (
    "A shuffled loader yields its rows in a different order each time, so predictions are not in "
    "the order of the dataset's own lists."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Lists that are paired by position, where their orders can differ."""
    yield from _lists_that_skip(context)
    yield from find_paired_listings(context)
    yield from _shuffled_predictions(context)


RULE = Rule(
    id="rows-out-of-step",
    title="Rows paired with the wrong ones",
    why="Images are paired with the wrong labels without any error: the results are worthless.",
    check=_check,
    pattern=(
        r"listdir|scandir|glob\(|iterdir|shuffle|imread|Image\b"
        r"|(label|target|image|path|[xy])s?\.append"
    ),
)


class _Append(NamedTuple):
    """`rows.append(value)` as a statement."""

    key: str  # the list's key, such as `self.labels`
    statement: ast.Expr


def _lists_that_skip(context: Context) -> Iterator[Mistake]:
    """A label that is always appended, and its image only if it can be read."""
    for loop in context.script.nodes(ast.For, ast.AsyncFor):
        for always in _appends(loop.body):
            for later, skipped_by in _appends_after(context, loop, always.statement):
                if later.key == always.key or not skipped_by:
                    continue
                is_loose = skipped_by == "if"
                if _are_paired(context, loop, always.key, later.key, is_loose):
                    yield _skipping_mistake(context, always, later)
                    break


def _appends(block: Iterable[ast.stmt]) -> Iterator[_Append]:
    """The statements of a block that append to a list."""
    for statement in block:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[_])):
                if key_of(owner):
                    yield _Append(key_of(owner), statement)


def _appends_after(
    context: Context, loop: ast.For | ast.AsyncFor, first: ast.stmt
) -> Iterator[tuple[_Append, str]]:
    """The appends after a statement of a loop, with the cause that may skip each ("" if none)."""
    skipped_by = ""
    for statement in loop.body[loop.body.index(first) + 1 :]:
        for append in _appends([statement]):
            yield append, skipped_by
        if isinstance(statement, ast.Try):
            is_quiet = any(not _ends_or_repairs(handler.body) for handler in statement.handlers)
            for append in _appends((*statement.body, *statement.orelse)):
                yield append, skipped_by or ("try" if is_quiet else "")
            if any(_continues(handler.body) for handler in statement.handlers):
                skipped_by = "try"
        elif isinstance(statement, ast.If):
            if _continues(statement.body):
                skipped_by = "try"
            elif not statement.orelse and _tests_row(context, loop, statement.test):
                for append in _appends(statement.body):
                    yield append, skipped_by or "if"


def _tests_row(context: Context, loop: ast.For | ast.AsyncFor, test: ast.expr) -> bool:
    """Return whether a test checks that a row is usable: a file exists, an image was read."""
    if not any(map(_tests_file, ast.walk(test))):
        return False
    inside = {loop, *own_nodes(loop)}
    names = (part for part in ast.walk(test) if isinstance(part, ast.Name))
    return any(
        binding.node in inside
        for name in names
        for binding in context.script.scope(name).reaching(name)
    )


def _tests_file(node: ast.AST) -> bool:
    match node:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=function):
            return last_name(function) in ("exists", "isfile", "is_file", "endswith", "is_image")
    return False


def _ends_or_repairs(body: Sequence[ast.stmt]) -> bool:
    """Return whether a handler ends the loop or the script, or corrects the lists."""
    nodes = list(block_nodes(body))
    ends = any(isinstance(node, (ast.Raise, ast.Return, ast.Break)) for node in nodes)
    return ends or _repairs(nodes)


def _continues(body: Sequence[ast.stmt]) -> bool:
    """Return whether a block skips the rest of the loop, and leaves the lists as they are."""
    nodes = list(block_nodes(body))
    return not _repairs(nodes) and any(isinstance(node, ast.Continue) for node in nodes)


def _repairs(nodes: Sequence[ast.AST]) -> bool:
    return any(
        isinstance(node, ast.Call) and last_name(node) in ("pop", "append") for node in nodes
    )


def _are_paired(context: Context, loop: ast.AST, key: str, other: str, is_loose: bool) -> bool:
    """Return whether two lists are paired: zipped, put in a dataset, returned, or indexed alike.

    is_loose: the lists may differ on purpose, so only calls that certainly pair rows count.
    """
    scope = context.script.function(loop)
    owner = context.script.enclosing_class(loop) if key.startswith("self.") else None
    inside = set(own_nodes(loop))
    indices: dict[str, set[str]] = {key: set(), other: set()}
    for node in ast.walk(owner) if owner is not None else own_nodes(scope):
        if node in inside:
            continue
        if isinstance(node, ast.Subscript) and key_of(node.value) in indices:
            indices[key_of(node.value)].add(context.script.code(node.slice))
        if start_position(node) < start_position(loop):
            continue
        if {key, other} <= _paired_keys(node, is_loose):
            return True
    return bool(indices[key] & indices[other])


def _paired_keys(node: ast.AST, is_loose: bool) -> set[str]:
    """The keys of the lists that a node pairs."""
    values: list[ast.expr] = []
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in _PAIRING_CALLS or (name[:1].isupper() and not is_loose):
            values = argument_values(node)
    elif isinstance(node, ast.Return) and node.value is not None and not is_loose:
        values = [node.value]
    return {key_of(part) for value in values for part in expressions_in(value)}


def _skipping_mistake(context: Context, always: _Append, later: _Append) -> Mistake:
    lines = [context.script.code(append.statement) for append in (later, always)]
    fixed = "\n".join(indented(context.script, later.statement, line) for line in lines)
    problem = f"{always.key} grows with every row, {later.key} only with those that are not skipped"
    return Mistake(always.statement, problem, fixed, _WHY_SKIPPED)


def _shuffled_predictions(context: Context) -> Iterator[Mistake]:
    """Predictions from a shuffled loader paired with the dataset's lists, which are not."""
    if not any("shuffle" in source.text for source in context.script.sources):
        return
    seen: set[ast.AST] = set()
    for loop in context.loader_loops:
        for call in context.loaders.creations(loop.loader) if loop.evaluates else []:
            flag = context.loaders.setting(call, "shuffle")
            if flag is None or context.constants.value(flag) is not True or call in seen:
                continue
            if _pairs_with_list(context, loop) or _indexes_list(loop):
                seen.add(call)
                fixed = show_replaced(context.script, flag, "False")
                name = context.script.code(loop.loader)
                problem = f"predictions from the shuffled {name} are matched by position"
                yield Mistake(call, problem, fixed, _WHY_SHUFFLED)


def _pairs_with_list(context: Context, loop: BatchLoop) -> bool:
    """Return whether collected predictions are paired with a list of the dataset after the loop."""
    collected = set(_collected_keys(loop))
    inside = set(loop_nodes(loop))
    for node in own_nodes(context.script.function(loop.node)):
        if node in inside or not isinstance(node, (ast.Call, ast.Compare, ast.Dict)):
            continue
        if start_position(node) < start_position(loop.node):
            continue
        if isinstance(node, ast.Call) and not _COMPARING_NAME.search(last_name(node.func)):
            continue
        parts = list(expressions_in(node))
        is_of_predictions = bool(collected & _source_keys(context, parts))
        if is_of_predictions and any(_is_dataset_list(context, part) for part in parts):
            return True
    return False


def _source_keys(context: Context, parts: Sequence[ast.expr]) -> set[str]:
    """The keys in some expressions, and the keys that they were computed from."""
    keys = {key_of(part) for part in parts}
    for part in parts:
        if isinstance(part, ast.Name):
            for binding in context.script.scope(part).reaching(part):
                if binding.kind == "value" and binding.value is not None:
                    keys |= {key_of(source) for source in expressions_in(binding.value)}
    return keys - {""}


def _is_dataset_list(context: Context, expression: ast.expr) -> bool:
    """Return whether an expression is a list in the order of the dataset or of a folder."""
    if _is_list_attribute(expression):
        return True
    if not isinstance(expression, ast.Name):
        return False
    reaching = context.script.scope(expression).reaching(expression)
    values = [item.value for item in reaching if item.kind == "value" and not item.steps]
    return any(
        any(map(_is_list_attribute, ast.walk(value))) or lists_folder(context, value)
        for value in values
        if value is not None
    )


def _is_list_attribute(node: ast.AST) -> bool:
    """Return whether a node is a list of a dataset: `dataset.targets`."""
    match node:
        case ast.Attribute(value=owner, attr=name) if name in _DATASET_LISTS:
            return bool(_DATASET_NAME.search(last_name(owner)))
    return False


def _collected_keys(loop: BatchLoop) -> Iterator[str]:
    for node in loop_nodes(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend"):
                yield key_of(node.func.value)
        elif isinstance(node, ast.AugAssign):
            yield key_of(node.target)


def _indexes_list(loop: BatchLoop) -> bool:
    """Return whether the dataset's lists are indexed with the batch number."""
    match loop.node:
        case ast.For(target=ast.Tuple(elts=[number, *_]), iter=ast.Call(func=function)) if (
            last_name(function) == "enumerate"
        ):
            return any(
                isinstance(node, ast.Subscript)
                and _is_list_attribute(node.value)
                and key_of(number) in map(key_of, expressions_in(node.slice))
                for node in loop_nodes(loop)
            )
    return False
