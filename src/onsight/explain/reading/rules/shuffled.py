"""Rule on predictions of a shuffled loader that are matched by their order."""

import ast
import re
from collections.abc import Iterator, Sequence

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import fixed, found, replaced
from onsight.explain.reading.flow import key_of
from onsight.explain.reading.loops import BatchLoop, loop_nodes
from onsight.explain.reading.rules.listing import is_listing, is_sorted_listing
from onsight.explain.reading.source import own_nodes, start_place
from onsight.explain.reading.wordset import word_set

_WHY = (
    "A shuffled loader gives its rows in another order each time, so predictions do not stand in "
    "the order of the dataset's own lists."
)
_LISTS = word_set(
    "targets samples imgs labels filenames files paths image_paths img_paths image_files file_paths"
)


def shuffled_pairs(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """Predictions from a shuffled loader beside the dataset's lists in their own order."""
    told: set[ast.AST] = set()
    for loop in loops:
        if not loop.evaluates:
            continue
        for call in facts.loaders.made(loop.loader):
            flag = facts.loaders.setting(call, "shuffle")
            if flag is None or facts.constants.fixed(flag) is not True or call in told:
                continue
            if _is_paired(facts, loop, call) or _is_indexed(facts, loop):
                told.add(call)
                text = fixed(facts.script, flag, [replaced(flag, "False")])
                words = facts.script.words(loop.loader)
                problem = f"predictions from the shuffled {words} are matched by their order"
                yield found(facts.script, call, "rows-out-of-step", problem, _WHY, text)


def _is_paired(facts: Facts, loop: BatchLoop, call: ast.Call) -> bool:
    """Whether gathered predictions meet a list of the dataset behind the loop."""
    gathered = set(_gathered(loop))
    scope = facts.script.function(loop.node)
    inside = set(loop_nodes(loop))
    for node in own_nodes(scope):
        if node in inside or not isinstance(node, (ast.Call, ast.Compare, ast.Dict)):
            continue
        if start_place(node) < start_place(loop.node):
            continue
        parts = [one for one in ast.walk(node) if isinstance(one, ast.expr)]
        if not _pairs(node) or not gathered & _derived(facts, parts):
            continue
        if any(_is_list(facts, one) for one in parts):
            return True
    return False


def _pairs(node: ast.AST) -> bool:
    """Whether a node sets rows side by side."""
    if isinstance(node, ast.Call):
        return bool(
            re.search(
                r"zip|score|matrix|report|DataFrame|array_equal|\beq\b|roc|curve",
                last_name(node.func),
            )
        )
    return True


def _derived(facts: Facts, parts: Sequence[ast.expr]) -> set[str]:
    """The names in an expression, and those that they were made of."""
    names = {key_of(one) for one in parts}
    for one in parts:
        if isinstance(one, ast.Name):
            for binding in facts.script.scope(one).reaching(one):
                if binding.how == "value" and binding.value is not None:
                    made = (part for part in ast.walk(binding.value) if isinstance(part, ast.expr))
                    names |= {key_of(part) for part in made}
    return names - {""}


def _is_list(facts: Facts, expression: ast.expr) -> bool:
    """Whether an expression is a list that the dataset or a folder gives in its own order."""
    if isinstance(expression, ast.Attribute) and expression.attr in _LISTS:
        return _is_dataset(facts, expression.value)
    if not isinstance(expression, ast.Name):
        return False
    for binding in facts.script.scope(expression).reaching(expression):
        value = binding.value
        if binding.how != "value" or value is None or binding.steps:
            continue
        inside = [one for one in ast.walk(value) if isinstance(one, ast.Attribute)]
        if any(one.attr in _LISTS and _is_dataset(facts, one.value) for one in inside):
            return True
        if is_listing(facts, value) or is_sorted_listing(facts, value):
            return True
    return False


def _is_dataset(facts: Facts, expression: ast.expr) -> bool:
    words = last_name(expression)
    return bool(re.search(r"dataset|data$|_set$|(^|_)ds$|testset|valset", words))


def _gathered(loop: BatchLoop) -> Iterator[str]:
    for node in loop_nodes(loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend"):
                yield key_of(node.func.value)
        elif isinstance(node, ast.AugAssign):
            yield key_of(node.target)


def _is_indexed(facts: Facts, loop: BatchLoop) -> bool:
    """Whether the dataset's lists are indexed by the number of the batch."""
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
                if name in _LISTS and _is_dataset(facts, owner) and number in used:
                    return True
    return False
