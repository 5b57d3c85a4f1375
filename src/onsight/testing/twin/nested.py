"""Arguments of operations: values in tuples, lists and dicts, which torch's pytrees walk slowly."""

from collections.abc import Callable, Iterator
from typing import Any


def leaves(tree: Any) -> Iterator[Any]:
    """All values."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        for one in tree:
            yield from leaves(one)
    else:
        yield tree


def changed(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with each value changed."""
    if isinstance(tree, (tuple, list)):
        return type(tree)([changed(change, one) for one in tree])
    if isinstance(tree, dict):
        return {name: changed(change, one) for name, one in tree.items()}
    return change(tree)
