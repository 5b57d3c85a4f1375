"""Arguments of operations: values in tuples, lists and dicts, which torch's pytrees walk slowly."""

from collections.abc import Callable
from typing import Any


def leaves(tree: Any) -> list[Any]:
    """All values."""
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return [tree]
    values = []
    for one in tree:
        if isinstance(one, (tuple, list, dict)):
            values += leaves(one)
        else:
            values.append(one)
    return values


def changed(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with each value changed."""
    if isinstance(tree, (tuple, list)):
        return type(tree)([changed(change, one) for one in tree])
    if isinstance(tree, dict):
        return {name: changed(change, one) for name, one in tree.items()}
    return change(tree)
