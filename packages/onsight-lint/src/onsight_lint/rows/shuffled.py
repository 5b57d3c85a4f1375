"""Rule on predictions of a shuffled loader that are matched by their order."""

import ast
import re
from collections.abc import Iterator, Sequence

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.flow import key_of
from onsight_lint.loops import BatchLoop, loop_nodes
from onsight_lint.rows.listing import is_listing, is_sorted_listing
from onsight_lint.rule import Mistake
from onsight_lint.source import own_nodes, start_place
from onsight_lint.vocabulary import word_set

_WHY = (
    "A shuffled loader yields its rows in a different order each time, so predictions are not in "
    "the order of the dataset's own lists."
)
_LISTS = word_set(
    "targets samples imgs labels filenames files paths image_paths img_paths image_files file_paths"
)


def shuffled(context: Context) -> Iterator[Mistake]:
    """Predictions from a shuffled loader paired with the dataset's lists, which are not."""
    if not any("shuffle" in source.text for source in context.script.sources):
        return
    seen: set[ast.AST] = set()
    for loop in context.batch_loops:
        if not loop.evaluates:
            continue
        for call in context.loaders.made(loop.loader):
            flag = context.loaders.setting(call, "shuffle")
            if flag is None or context.constants.fixed(flag) is not True or call in seen:
                continue
            if _is_paired(context, loop, call) or _is_indexed(context, loop):
                seen.add(call)
                text = fixed(context.script, flag, [replaced(flag, "False")])
                words = context.script.code(loop.loader)
                problem = f"predictions from the shuffled {words} are matched by position"
                yield Mistake(call, problem, text, _WHY)


def _is_paired(context: Context, loop: BatchLoop, call: ast.Call) -> bool:
    """Whether collected predictions are paired with a list of the dataset after the loop."""
    gathered = set(_gathered(loop))
    scope = context.script.function(loop.node)
    inside = set(loop_nodes(loop))
    for node in own_nodes(scope):
        if node in inside or not isinstance(node, (ast.Call, ast.Compare, ast.Dict)):
            continue
        if start_place(node) < start_place(loop.node):
            continue
        parts = [one for one in ast.walk(node) if isinstance(one, ast.expr)]
        if not _pairs(node) or not gathered & _derived(context, parts):
            continue
        if any(_is_list(context, one) for one in parts):
            return True
    return False


def _pairs(node: ast.AST) -> bool:
    """Whether a node pairs rows."""
    if isinstance(node, ast.Call):
        return bool(
            re.search(
                r"zip|score|matrix|report|DataFrame|array_equal|\beq\b|roc|curve",
                last_name(node.func),
            )
        )
    return True


def _derived(context: Context, parts: Sequence[ast.expr]) -> set[str]:
    """The names in some expressions, and those that they were computed from."""
    names = {key_of(one) for one in parts}
    for one in parts:
        if isinstance(one, ast.Name):
            for binding in context.script.scope(one).reaching(one):
                if binding.how == "value" and binding.value is not None:
                    made = (part for part in ast.walk(binding.value) if isinstance(part, ast.expr))
                    names |= {key_of(part) for part in made}
    return names - {""}


def _is_list(context: Context, expression: ast.expr) -> bool:
    """Whether an expression is a list in the order of the dataset or of a folder."""
    if isinstance(expression, ast.Attribute) and expression.attr in _LISTS:
        return _is_dataset(context, expression.value)
    if not isinstance(expression, ast.Name):
        return False
    for binding in context.script.scope(expression).reaching(expression):
        value = binding.value
        if binding.how != "value" or value is None or binding.steps:
            continue
        inside = [one for one in ast.walk(value) if isinstance(one, ast.Attribute)]
        if any(one.attr in _LISTS and _is_dataset(context, one.value) for one in inside):
            return True
        if is_listing(context, value) or is_sorted_listing(context, value):
            return True
    return False


def _is_dataset(context: Context, expression: ast.expr) -> bool:
    words = last_name(expression)
    return bool(re.search(r"dataset|data$|_set$|(^|_)ds$|testset|valset", words))


def _gathered(loop: BatchLoop) -> Iterator[str]:
    for node in loop_nodes(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend"):
                yield key_of(node.func.value)
        elif isinstance(node, ast.AugAssign):
            yield key_of(node.target)


def _is_indexed(context: Context, loop: BatchLoop) -> bool:
    """Whether the dataset's lists are indexed with the batch number."""
    node = loop.node
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return False
    if not isinstance(node.iter, ast.Call) or last_name(node.iter.func) != "enumerate":
        return False
    number = key_of(node.target.elts[0])
    for one in loop_nodes(loop):
        match one:
            case ast.Subscript(value=ast.Attribute(value=owner, attr=name), slice=key):
                used = {key_of(part) for part in ast.walk(key) if isinstance(part, ast.expr)}
                if name in _LISTS and _is_dataset(context, owner) and number in used:
                    return True
    return False
