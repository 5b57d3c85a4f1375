"""Whether two pieces of code are in different branches of one `if`."""

import ast
from collections.abc import Iterator

from onsight_lint.source import Source


def apart(source: Source, one: ast.AST, other: ast.AST) -> bool:
    """Whether two nodes are in different branches of one `if`, so that only one of them runs."""
    mine = {parent: child for child, parent in _chain(source, one)}
    for child, parent in _chain(source, other):
        if parent in mine:
            sides = {_side(parent, child), _side(parent, mine[parent])}
            return isinstance(parent, (ast.If, ast.IfExp)) and sides == {"body", "orelse"}
    return False


def _chain(source: Source, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for parent in source.ancestors(node):
        yield node, parent
        node = parent


def _side(parent: ast.AST, child: ast.AST) -> str:
    for side in ("body", "orelse"):
        part = getattr(parent, side, None)
        if child is part or (isinstance(part, list) and any(child is one for one in part)):
            return side
    return "test"
