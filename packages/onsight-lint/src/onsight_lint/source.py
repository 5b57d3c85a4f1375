"""A parsed Python file: its syntax tree, the parents of nodes, and their source code."""

import ast
import io
import tokenize
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from onsight_lint.errors import ReadError

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Place = tuple[int, int]  # line, column

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES = (ast.Name, ast.Constant, ast.alias, ast.Global, ast.Nonlocal)  # hold no other nodes
_NO_NODES = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "n", "s", "kind", "type_comment"})
_MOST_BYTES = 4 * 2**20  # a generated table; its tree would fill gigabytes
_OF_PYTHON_2 = (  # messages about what was valid there
    "Missing parentheses in call to",
    "multiple exception types must be parenthesized",
    "leading zeros in decimal integer literals",
)
_CLOSED = (*FUNCTIONS, ast.ClassDef, ast.Lambda)


class Source:
    """A parsed file; module: the name under which the script imports it."""

    def __init__(self, path: Path, text: str, tree: ast.Module, module: str) -> None:
        self.path, self.text, self.tree, self.module = path, text, tree, module
        self.lines = text.split("\n")
        self.parents: dict[ast.AST, ast.AST] = {}
        self.by_type: dict[type, list[Any]] = defaultdict(list)
        self.nodes = self._walk()
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def all(self, *types: type[ast.AST]) -> list[Any]:
        """The nodes of some types, those of each type in the order of a breadth-first walk."""
        return [node for one in types for node in self.by_type[one]]

    def start(self, node: ast.AST) -> int:
        """Where a node begins, as an index into the text."""
        return self.offset(start_place(node))

    def end(self, node: ast.AST) -> int:
        """Where a node ends, as an index into the text."""
        return self.offset(end_place(node))

    def code(self, node: ast.AST) -> str:
        """The source code of a node."""
        return self.text[self.start(node) : self.end(node)]

    def indentation(self, node: ast.AST) -> str:
        """The white space before the line on which a node begins."""
        line = self.lines[start_place(node)[0] - 1]
        return line[: len(line) - len(line.lstrip())]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes that contain a node, from the innermost outwards."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method contains a node."""
        function: ast.AST | None = None
        for parent in self.ancestors(node):
            if isinstance(parent, ast.ClassDef) and function is not None:
                return parent
            if isinstance(parent, FUNCTIONS):
                function = parent
        return None

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is, or is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def _walk(self) -> list[ast.AST]:
        """Every node but contexts and operators, which have no place and are shared."""
        waiting: list[ast.AST] = [self.tree]
        by_type, parents = self.by_type, self.parents
        for node in waiting:  # grows while it is iterated: breadth first
            by_type[type(node)].append(node)
            inside = children(node)
            if inside:
                parents.update(dict.fromkeys(inside, node))
                waiting += inside
        return waiting

    def character(self, place: Place) -> Place:
        """A place with its column in characters; Python counts columns in bytes of UTF-8."""
        line = min(place[0], len(self.lines))
        return line, self.offset(place) - self._starts[line - 1]

    def offset(self, place: Place) -> int:
        """A place as an index into the text; Python counts columns in bytes of UTF-8."""
        line, column = place
        line = min(line, len(self.lines))  # Python 3.11 misplaces what is inside some f-strings
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self._starts[line - 1] + column


def read_content(path: Path) -> bytes:
    """What a file holds. Raises ReadError if it cannot be read or is too large."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ReadError(f"{path} is not read: it is larger than {_MOST_BYTES // 2**20} MB.")
        return path.read_bytes()
    except OSError as error:
        raise ReadError(f"{path} cannot be read: {error.strerror or error}.") from error


def decoded(path: Path, content: bytes) -> str:
    """The text of a file, its lines ending in \\n. Raises ReadError if it is not Python's text."""
    try:
        # Handles coding lines and byte order marks.
        encoding = tokenize.detect_encoding(io.BytesIO(content).readline)[0]
        return io.TextIOWrapper(io.BytesIO(content), encoding).read()
    except SyntaxError as error:
        raise ReadError(f"{path} is not a Python script: {error.msg}.") from error
    except UnicodeDecodeError as error:
        raise ReadError(f"{path} is not UTF-8 text; save it as UTF-8.") from error


def parsed(path: Path, text: str) -> ast.Module:
    """The syntax tree of a file. Raises ReadError, with file and line, if it has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own escape sequences
            return ast.parse(text)
    except SyntaxError as error:
        raise _not_python(path, error) from error
    except ValueError as error:  # a null byte
        raise ReadError(f"{path} is not a Python script: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise ReadError(f"{path} cannot be read: its code is nested too deeply.") from error


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly within a node, in source order, without contexts and operators."""
    found: list[ast.AST] = []
    kind: Any = type(node)
    for name in _fields(kind):
        part = getattr(node, name, None)
        if isinstance(part, list):
            found += [one for one in part if isinstance(one, ast.AST)] if part else part
        elif isinstance(part, ast.AST):
            found.append(part)
    return found


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    """The fields of a type of node that may hold other nodes, in the order of the source."""
    if issubclass(kind, _LEAVES):
        return ()
    return tuple(name for name in kind._fields if name not in _NO_NODES)


def start_place(node: ast.AST) -> Place:
    """Line and column at which a node begins."""
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0)


def end_place(node: ast.AST) -> Place:
    """Line and column just after the end of a node."""
    return getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes within a node, in source order, without the insides of nested functions."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        waiting: list[ast.AST] = [*reversed(node.body)]
    else:
        waiting = children(node)[::-1]
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, _CLOSED):
            waiting += reversed(children(child))


def body_nodes(loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[ast.AST]:
    """The nodes within the body of a loop, without the insides of nested functions."""
    for statement in loop.body:
        yield statement
        if not isinstance(statement, _CLOSED):
            yield from own_nodes(statement)


def _not_python(path: Path, error: SyntaxError) -> ReadError:
    remedy = "Fix it so that the script starts, then try again."
    if error.msg.startswith(_OF_PYTHON_2):
        remedy = "The script is written for Python 2: translate it to Python 3 first."
    return ReadError(
        f"{path}, line {error.lineno}: Python cannot read this ({error.msg}). {remedy}"
    )
