"""Edits of source text: make them from syntax nodes, apply them, and show the result."""

import ast
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from onsight_lint.script import Script
from onsight_lint.syntax import DEFINITIONS, LOOPS, end_position, start_position

_COMPOUND = (*DEFINITIONS, *LOOPS, ast.If, ast.With, ast.AsyncWith)


class Change(NamedTuple):
    """A part of a text and its replacement."""

    start: int  # index into the text
    end: int  # index just after the part; the same as start for an insertion
    text: str


def apply_changes(text: str, changes: Iterable[Change]) -> str:
    """Return a text with changes made.

    Insertions at the same place are made in the order given. Raises ValueError if two changes
    overlap.
    """
    parts, position = [], 0
    for start, end, new in sorted(changes, key=lambda change: change[:2]):
        if start < position:
            raise ValueError(f"two changes overlap at character {start}")
        parts += [text[position:start], new]
        position = end
    return "".join([*parts, text[position:]])


def drop_overlaps(changes: Iterable[Change]) -> list[Change]:
    """Return changes without duplicates and, of those that overlap, only the last in the text.

    Two insertions at one place count as overlapping.
    """
    kept: list[Change] = []
    for change in sorted(set(changes), reverse=True):
        if not kept or (change.end <= kept[-1].start and change.start < kept[-1].start):
            kept.append(change)
    return kept[::-1]


def replace_node(script: Script, node: ast.AST, text: str) -> Change:
    """Return the change that replaces a node with new text."""
    source = script.source(node)
    return Change(source.start(node), source.end(node), text)


def insert_line_above(script: Script, statement: ast.stmt, line: str) -> list[Change]:
    """Return the change that puts a line above a statement; none if it shares its first line."""
    source = script.source(statement)
    margin, start = source.indentation(statement), source.start(statement)
    starts_line = source.character(start_position(statement))[1] == len(margin)
    return [Change(start, start, f"{line}\n{margin}")] if starts_line else []


def wrap_statement(script: Script, statement: ast.stmt, line: str) -> list[Change]:
    """Return the change that puts a simple statement into a block such as a `with`.

    There is none if the statement shares its lines with something else.
    """
    if isinstance(statement, _COMPOUND) or not _is_on_own_lines(script, statement):
        return []
    margin = script.source(statement).indentation(statement)
    inner = script.code(statement).replace("\n", "\n    ")
    return [replace_node(script, statement, f"{line}\n{margin}    {inner}")]


def show_changed(script: Script, node: ast.AST, changes: Sequence[Change]) -> str:
    """Return the statement that contains a node, with changes made and the body as `...`."""
    source = script.source(node)
    statement = source.statement(node)
    offset = source.start(statement)
    moved = [Change(start - offset, end - offset, text) for start, end, text in changes]
    return indented(script, statement, apply_changes(statement_head(script, statement), moved))


def show_replaced(script: Script, node: ast.AST, text: str) -> str:
    """Return the statement that contains a node, with new text in place of the node."""
    return show_changed(script, node, [replace_node(script, node, text)])


def show_with_line_above(script: Script, statement: ast.stmt, line: str) -> str:
    """Return a statement with a new line above it."""
    margin = script.source(statement).indentation(statement)
    return f"{margin}{line}\n{margin}{statement_head(script, statement)}"


def show_wrapped(script: Script, statement: ast.stmt, line: str) -> str:
    """Return a statement in a new block, such as a `with`."""
    margin = script.source(statement).indentation(statement)
    inner = statement_head(script, statement).replace("\n", "\n    ")
    return f"{margin}{line}\n{margin}    {inner}"


def indented(script: Script, node: ast.AST, text: str) -> str:
    """Return text with the indentation of the statement that a node is, or is part of."""
    return script.source(node).indentation(script.statement(node)) + text


def statement_head(script: Script, statement: ast.stmt) -> str:
    """Return the code of a statement; in compound statements `...` replaces the body."""
    source = script.source(statement)
    if not isinstance(statement, _COMPOUND):
        return source.code(statement)
    start, body = source.start(statement), source.start(statement.body[0])
    last = _last_of_head(statement)
    colon = source.text.find(":", start if last is None else source.end(last), body)
    return f"{source.text[start : colon + 1]}\n{source.indentation(statement)}    ..."


def _last_of_head(statement: ast.stmt) -> ast.AST | None:
    """The last expression between a statement's keyword and its colon."""
    match statement:
        case ast.For() | ast.AsyncFor():
            return statement.iter
        case ast.While() | ast.If():
            return statement.test
        case ast.With() | ast.AsyncWith():
            last = statement.items[-1]
            return last.optional_vars or last.context_expr
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return statement.returns
    return None


def _is_on_own_lines(script: Script, statement: ast.stmt) -> bool:
    """Return whether nothing else is on a statement's lines, and no string in it spans lines."""
    source = script.source(statement)
    before = source.text[: source.start(statement)].rpartition("\n")[2]
    after = source.text[source.end(statement) :].partition("\n")[0]
    strings = (
        node for node in ast.walk(statement) if isinstance(node, (ast.Constant, ast.JoinedStr))
    )
    is_whole = all(start_position(node)[0] == end_position(node)[0] for node in strings)
    return not before.strip() and not after.partition("#")[0].strip() and is_whole
