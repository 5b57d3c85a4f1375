"""A parsed Python file: its syntax tree, the parents of nodes, and their source code."""

import ast
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from onsight.errors import DataError

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Place = tuple[int, int]  # line, column

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
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
        self.nodes = list(ast.walk(tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

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

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that a node is, or is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def offset(self, place: Place) -> int:
        """A place as an index into the text; Python counts columns in bytes of UTF-8."""
        line, column = place
        line = min(line, len(self.lines))  # Python 3.11 misplaces what is inside some f-strings
        text = self.lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode(errors="ignore"))
        return self._starts[line - 1] + column


def read_source(path: Path, module: str) -> Source:
    """Parse a file. Raises DataError, with file and line, if that fails."""
    text = _read(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the script's own escape sequences
            tree = ast.parse(text)
    except SyntaxError as error:
        raise _not_python(path, error) from error
    except ValueError as error:  # a null byte
        raise DataError(f"{path} is not a Python script: {error}.") from error
    except (RecursionError, MemoryError) as error:
        raise DataError(f"{path} cannot be read: its code is nested too deeply.") from error
    return Source(path, text, tree, module)


def start_place(node: ast.AST) -> Place:
    """Line and column at which a node begins."""
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0)


def end_place(node: ast.AST) -> Place:
    """Line and column just after the end of a node."""
    return getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes within a node, in source order, without the insides of nested functions."""
    waiting = list(_children(node))[::-1]
    while waiting:
        child = waiting.pop()
        yield child
        if not isinstance(child, _CLOSED):
            waiting.extend(list(ast.iter_child_nodes(child))[::-1])


def body_nodes(loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[ast.AST]:
    """The nodes within the body of a loop, without the insides of nested functions."""
    for statement in loop.body:
        yield statement
        if not isinstance(statement, _CLOSED):
            yield from own_nodes(statement)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return iter(node.body)
    return ast.iter_child_nodes(node)


def _read(path: Path) -> str:
    try:
        with tokenize.open(path) as file:  # handles coding lines and byte order marks
            return file.read()
    except SyntaxError as error:
        raise DataError(f"{path} is not a Python script: {error.msg}.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text; save it as UTF-8.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _not_python(path: Path, error: SyntaxError) -> DataError:
    remedy = "Fix it so that the script starts, then try again."
    if error.msg.startswith(_OF_PYTHON_2):
        remedy = "The script is written for Python 2: translate it to Python 3 first."
    return DataError(
        f"{path}, line {error.lineno}: Python cannot read this ({error.msg}). {remedy}"
    )
