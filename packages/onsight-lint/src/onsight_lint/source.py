"""A parsed Python file: the positions, parents and source code of its nodes."""

import ast
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from onsight_lint.errors import ReadError
from onsight_lint.syntax import (
    FUNCTIONS,
    Position,
    children,
    end_position,
    is_main_guard,
    key_of,
    start_position,
)

_PYTHON_2_ERRORS = (
    "Missing parentheses in call to",
    "multiple exception types must be parenthesized",
    "leading zeros in decimal integer literals",
)
BLOCK_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


class SourceFile:
    """A parsed file with its nodes."""

    def __init__(self, path: Path, text: str, tree: ast.Module, module: str) -> None:
        self.path, self.text, self.tree = path, text, tree
        self.module = module  # the name under which the script imports it
        self.lines = text.split("\n")
        self.parents: dict[ast.AST, ast.AST] = {}
        self.by_type: dict[type, list[Any]] = defaultdict(list)
        self.nodes = self._walk()
        self._line_starts = [0, *accumulate(len(line) + 1 for line in self.lines)]

    def all(self, *types: type[ast.AST]) -> list[Any]:
        """Return the nodes of some types, type by type, each breadth first."""
        return [node for kind in types for node in self.by_type[kind]]

    @cached_property
    def by_key(self) -> dict[str, list[ast.expr]]:
        """The names, attributes and items that are read, by their dotted keys (see `key_of`)."""
        nodes: dict[str, list[ast.expr]] = defaultdict(list)
        for node in self.all(ast.Name, ast.Attribute, ast.Subscript):
            if isinstance(node.ctx, ast.Load):
                nodes[key_of(node)].append(node)
        return nodes

    @cached_property
    def keyed_by_words(self) -> set[str]:
        """The code of whatever is used like a dict of words: `batch["x"]`, `f(**batch)`."""
        dicts = {self.code(node.value) for node in self.all(ast.keyword) if node.arg is None}
        for node in self.all(ast.Subscript):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                dicts.add(self.code(node.value))
        return dicts

    def start(self, node: ast.AST) -> int:
        """Return where a node begins, as an index into the text."""
        return self.offset(start_position(node))

    def end(self, node: ast.AST) -> int:
        """Return where a node ends, as an index into the text."""
        return self.offset(end_position(node))

    def code(self, node: ast.AST) -> str:
        """Return the source code of a node."""
        return self.text[self.start(node) : self.end(node)]

    def indentation(self, node: ast.AST) -> str:
        """Return the white space before the line on which a node begins."""
        line = self.lines[start_position(node)[0] - 1]
        return line[: len(line) - len(line.lstrip())]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes that contain a node, from the innermost outwards."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class whose method contains a node."""
        function: ast.AST | None = None
        for parent in self.ancestors(node):
            if isinstance(parent, ast.ClassDef) and function is not None:
                return parent
            if isinstance(parent, FUNCTIONS):
                function = parent
        return None

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is, or is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def are_alternatives(self, first: ast.AST, second: ast.AST) -> bool:
        """Return whether two nodes are in different branches of one `if`, so that only one runs."""
        branches = {parent: child for child, parent in pairwise((first, *self.ancestors(first)))}
        for child, parent in pairwise((second, *self.ancestors(second))):
            if parent in branches:
                if not isinstance(parent, (ast.If, ast.IfExp)):
                    return False
                return {_side(parent, child), _side(parent, branches[parent])} == {"body", "orelse"}
        return False

    def character(self, position: Position) -> Position:
        """Return a position with its column in characters instead of bytes."""
        line = min(position[0], len(self.lines))
        return line, self.offset(position) - self._line_starts[line - 1]

    def offset(self, position: Position) -> int:
        """Return a position as an index into the text."""
        line, column = position
        line = min(line, len(self.lines))  # Python 3.11 misplaces what is inside some f-strings
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self._line_starts[line - 1] + column

    def _walk(self) -> list[ast.AST]:
        """Every node but contexts and operators, which have no position and are shared."""
        nodes: list[ast.AST] = [self.tree]
        by_type, parents = self.by_type, self.parents
        for node in nodes:  # grows while it is iterated: breadth first
            by_type[type(node)].append(node)
            inside = children(node)
            if inside:
                parents.update(dict.fromkeys(inside, node))
                nodes += inside
        return nodes


def parse(path: Path, text: str) -> ast.Module:
    """Parse a file. Raises ReadError, with file and line, if it is not valid Python 3."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about escape sequences in the script
            return ast.parse(text)
    except SyntaxError as error:
        raise _syntax_error(path, error) from error
    except ValueError as error:  # a null byte
        raise ReadError(f"{path} is not a Python script: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise ReadError(f"{path} cannot be read: its code is nested too deeply.") from error


def drop_unreachable(tree: ast.Module, is_imported: bool) -> None:
    """Remove what follows a return, raise, break or continue.

    In a file that is only imported, also remove `if __name__ == "__main__":`.
    """
    if is_imported:
        tree.body = [statement for statement in tree.body if not is_main_guard(statement)]
    waiting: list[ast.AST] = [tree]
    for node in waiting:  # grows while it is iterated; expressions hold no statements
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                ends = [n for n, part in enumerate(block) if isinstance(part, BLOCK_ENDS)]
                del block[ends[0] + 1 if ends else len(block) :]
                waiting += block


def _side(parent: ast.AST, child: ast.AST) -> str:
    for side in ("body", "orelse"):
        part = getattr(parent, side, None)
        if child is part or (isinstance(part, list) and child in part):
            return side
    return "test"


def _syntax_error(path: Path, error: SyntaxError) -> ReadError:
    remedy = "Fix the syntax error and run again."
    if error.msg.startswith(_PYTHON_2_ERRORS):
        remedy = "This is Python 2 code: convert it to Python 3 first."
    return ReadError(f"{path}, line {error.lineno}: invalid syntax ({error.msg}). {remedy}")
