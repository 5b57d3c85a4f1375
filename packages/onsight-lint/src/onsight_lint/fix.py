"""Corrected source lines: a statement of the script with some of its parts replaced."""

import ast
from collections.abc import Sequence

from onsight_lint.script import Script
from onsight_lint.source import FUNCTIONS, Place, end_place, start_place

Edit = tuple[Place, Place, str]  # from, to, the new text

_COMPOUND = (
    *FUNCTIONS,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.With,
    ast.AsyncWith,
)


def replaced(node: ast.AST, text: str) -> Edit:
    """The edit that replaces a node by new text."""
    return start_place(node), end_place(node), text


def fixed(script: Script, node: ast.AST, edits: Sequence[Edit]) -> str:
    """The statement that contains a node, with parts replaced by new text."""
    source = script.source(node)
    statement = source.statement(node)
    text = header(script, statement)
    offset = source.start(statement)
    spans = sorted((source.offset(start), source.offset(end), new) for start, end, new in edits)
    for start, end, new in reversed(spans):
        text = text[: start - offset] + new + text[end - offset :]
    return indented(script, statement, text)


def header(script: Script, statement: ast.stmt) -> str:
    """A statement as written; a compound statement's body is replaced by `...`."""
    source = script.source(statement)
    if not isinstance(statement, _COMPOUND):
        return source.code(statement)
    begin, body = source.start(statement), source.start(statement.body[0])
    last = max(source.end(one) for one in _head(statement)) if _head(statement) else begin
    colon = source.text.find(":", last, body)
    head = source.text[begin : colon + 1]
    return f"{head}\n{source.indentation(statement)}    ..."


def is_on_own_lines(script: Script, statement: ast.stmt) -> bool:
    """Whether nothing else is on a statement's lines, and no string in it spans lines."""
    source = script.source(statement)
    before = source.text[: source.start(statement)].rpartition("\n")[2]
    after = source.text[source.end(statement) :].partition("\n")[0]
    strings = (one for one in ast.walk(statement) if isinstance(one, (ast.Constant, ast.JoinedStr)))
    whole = all(start_place(one)[0] == end_place(one)[0] for one in strings)
    return not before.strip() and not after.partition("#")[0].strip() and whole


def inserted_above(script: Script, statement: ast.stmt, line: str) -> list[Edit]:
    """The edit that puts a line above a statement; none where the statement shares its line."""
    source = script.source(statement)
    margin = source.indentation(statement)
    place = start_place(statement)
    if source.lines[place[0] - 1][: len(margin)].strip() or source.character(place)[1] != len(
        margin
    ):
        return []
    return [(place, place, f"{line}\n{margin}")]


def wrapped(script: Script, statement: ast.stmt, line: str) -> list[Edit]:
    """The edit that puts a statement inside a new one; none where it shares its lines."""
    if isinstance(statement, _COMPOUND) or not is_on_own_lines(script, statement):
        return []
    margin = script.source(statement).indentation(statement)
    inner = script.code(statement).replace("\n", "\n    ")
    return [replaced(statement, f"{line}\n{margin}    {inner}")]


def indented(script: Script, statement: ast.stmt, text: str) -> str:
    """Text with the indentation of a statement."""
    return script.source(statement).indentation(statement) + text


def above(script: Script, statement: ast.stmt, line: str) -> str:
    """A statement with a new line above it."""
    margin = script.source(statement).indentation(statement)
    return f"{margin}{line}\n{margin}{header(script, statement)}"


def within(script: Script, statement: ast.stmt, line: str) -> str:
    """A statement inside a new one, such as a `with`."""
    margin = script.source(statement).indentation(statement)
    inner = header(script, statement).replace("\n", "\n    ")
    return f"{margin}{line}\n{margin}    {inner}"


def _head(statement: ast.stmt) -> list[ast.AST]:
    """The expressions between a statement's keyword and its colon."""
    match statement:
        case ast.For() | ast.AsyncFor():
            return [statement.iter]
        case ast.While() | ast.If():
            return [statement.test]
        case ast.With() | ast.AsyncWith():
            last = statement.items[-1]
            return [last.optional_vars or last.context_expr]
        case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.returns is not None:
            return [statement.returns]
    return []
