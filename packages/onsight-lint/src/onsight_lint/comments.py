"""Comments that silence findings: `# onsight: ignore`, `# onsight: ignore[id]`, `ignore-file`."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from onsight_lint.source import Source, end_place, start_place

_COMMENT = re.compile(
    r"#\s*onsight:\s*ignore(?P<file>-file)?\b(?:\s*\[(?P<ids>[^\]]*)\])?(?P<note>[^#]*)"
)
_ID = re.compile(r"[^,\s](?:[^,]*[^,\s])?")

Span = tuple[int, int]  # columns of a line, in characters


@dataclass(frozen=True)
class Comment:
    """One comment: its line and columns; ids: what it silences, each with its columns."""

    line: int
    span: Span
    whole: bool  # whether it stands for the whole file
    ids: tuple[tuple[str, Span], ...]  # none: it silences every rule


def silencing(source: Source, node: ast.AST, rule: str) -> list[Comment]:
    """The comments that silence a rule on the lines of a node, or in the whole file."""
    if "onsight:" not in source.text:
        return []
    lines = _lines(source, node)
    return [
        one
        for one in comments(source.text)
        if (one.whole or one.line in lines) and (not one.ids or rule in dict(one.ids))
    ]


@lru_cache(200)
def comments(text: str) -> tuple[Comment, ...]:
    """The comments of a text that silence something."""
    return tuple(_found(text)) if "onsight:" in text else ()


def _found(text: str) -> Iterator[Comment]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from (_read(said, *token.start) for said in _COMMENT.finditer(token.string))


def _read(said: re.Match[str], line: int, column: int) -> Comment:
    found = _ID.finditer(said.string, *said.span("ids")) if said["ids"] else ()
    ids = [(one[0], (column + one.start(), column + one.end())) for one in found]
    return Comment(
        line, (column + said.start(), column + said.end()), bool(said["file"]), tuple(ids)
    )


def _lines(source: Source, node: ast.AST) -> range:
    """The lines of a node, of the simple statement around it, or of a compound one's head."""
    body = getattr(node, "body", None)
    last = end_place(node)[0]
    if isinstance(body, list) and body:
        return range(start_place(node)[0], max(start_place(body[0])[0], start_place(node)[0] + 1))
    statement = source.statement(node)
    if not hasattr(statement, "body"):
        return range(start_place(statement)[0], end_place(statement)[0] + 1)
    return range(start_place(node)[0], last + 1)
