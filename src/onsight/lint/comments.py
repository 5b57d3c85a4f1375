"""Comments that silence findings: `# onsight: ignore`, `# onsight: ignore[id]`, `ignore-file`."""

import ast
import io
import re
import tokenize
from functools import lru_cache

from onsight.lint.source import Source, end_place, start_place

_COMMENT = re.compile(r"#\s*onsight:\s*ignore(?P<file>-file)?\b(?:\s*\[(?P<ids>[^\]]*)\])?")
_WHOLE = 0  # the line number under which comments on a whole file are kept


def is_ignored(source: Source, node: ast.AST, rule: str) -> bool:
    """Whether a comment silences a rule on the lines of a node, or in the whole file."""
    if "onsight:" not in source.text:
        return False
    found, lines = _ignored(source), (_WHOLE, *_lines(source, node))
    return any(rule in found[line] or "" in found[line] for line in lines if line in found)


@lru_cache(200)
def _ignored(source: Source) -> dict[int, set[str]]:
    """The ids that are silenced on each line; the empty id stands for all rules."""
    found: dict[int, set[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and (said := _COMMENT.search(token.string)):
            ids = {one.strip() for one in (said["ids"] or "").split(",")}
            found.setdefault(_WHOLE if said["file"] else token.start[0], set()).update(ids)
    return found


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
