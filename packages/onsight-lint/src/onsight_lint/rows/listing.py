"""Whether a list is in the arbitrary order of a folder listing."""

import ast

from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.flow import key_of
from onsight_lint.values import Origin

_LISTINGS = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob"})


def is_listing(facts: Facts, expression: ast.expr) -> bool:
    """Whether a list is in the order of an unsorted folder listing."""
    if _is_sorted_in_place(facts, expression):
        return False
    origins = facts.values.origins(expression)
    return bool(origins) and all(_lists(facts, origin) for origin in origins)


def _lists(facts: Facts, origin: Origin, depth: int = 3) -> bool:
    node = origin.node
    if origin.steps or not depth:
        return False
    if isinstance(node, ast.Call):
        if facts.script.path_of(node.func) in _LISTINGS:
            return True
        plain = isinstance(node.func, ast.Attribute) and not facts.script.path_of(node.func)
        return plain and last_name(node.func) in ("iterdir", "glob", "rglob")
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        inner = facts.values.origins(node.generators[0].iter)
        return bool(inner) and all(_lists(facts, one, depth - 1) for one in inner)
    return False


def is_sorted_listing(facts: Facts, value: ast.expr) -> bool:
    """Whether a value is a sorted listing."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("sorted", "natsorted"):
        return bool(value.args) and is_listing(facts, value.args[0])
    return False


def _is_sorted_in_place(facts: Facts, expression: ast.expr) -> bool:
    """Whether `names.sort()` is called anywhere."""
    key = key_of(expression)
    return bool(key) and any(
        isinstance(call.func, ast.Attribute) and key_of(call.func.value) == key
        for call in facts.values.calls("sort")
    )
