"""Find comments that silence findings, and report those that silence nothing.

`# onsight: ignore[id]` is for its line, `# onsight: ignore-file[id]` for its file; without ids,
they are for all rules.
"""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from onsight_lint.edits import Change
from onsight_lint.errors import did_you_mean
from onsight_lint.rule import Finding
from onsight_lint.rules.unused_ignore import RULE
from onsight_lint.source import SourceFile
from onsight_lint.syntax import end_position, start_position

_COMMENT = re.compile(
    r"#\s*onsight:\s*ignore(?P<file>-file)?\b(?:\s*\[(?P<ids>[^\]]*)\])?(?P<note>[^#]*)"
)
_ID = re.compile(r"[^,\s](?:[^,]*[^,\s])?")
_RUNS_CODE = re.compile(r"__main__|^(?:for|while)\b|^\w+\(", re.MULTILINE)

Span = tuple[int, int]  # columns of a line, in characters


@dataclass(frozen=True)
class IgnoreComment:
    """A comment that silences rules."""

    line: int
    span: Span
    is_file_wide: bool
    ids: tuple[tuple[str, Span], ...]  # the rules that it silences; none: all of them


class Silenced(NamedTuple):
    """A rule that a comment silenced."""

    file: Path
    line: int  # the comment's line
    rule: str


def silencing(source: SourceFile, node: ast.AST, rule: str) -> list[IgnoreComment]:
    """Return the comments that silence a rule on the lines of a node, or in the whole file."""
    lines = _covered_lines(source, node)
    return [
        comment
        for comment in _find_comments(source.text)
        if (comment.is_file_wide or comment.line in lines)
        and (not comment.ids or rule in dict(comment.ids))
    ]


def runs_by_itself(text: str) -> bool:
    """Return whether a file is a script.

    What the comments of a module silence depends on the scripts that import it.
    """
    return bool(_RUNS_CODE.search(text))


def unused_ignores(
    path: Path,
    text: str,
    silenced: Collection[Silenced],
    checked: Collection[str],
    known: Collection[str],
    is_complete: bool,
) -> Iterator[Finding]:
    """Yield a finding for each id in a comment that is not known or silences nothing.

    checked: the ids of the rules that were applied; comments on others are left alone. known: the
    ids of all rules. is_complete: whether the file was read with a script that runs it; if not,
    only ids that are not known are reported.
    """
    comments = _find_comments(text)
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    used_on: dict[int, set[str]] = defaultdict(set)
    for item in silenced:
        if item.file == path:
            used_on[item.line].add(item.rule)
    allowed = {name for comment in comments if comment.is_file_wide for name, _ in comment.ids}
    is_all_checked = set(checked) >= set(known)
    for comment in comments:
        names = {name for name, _ in comment.ids}
        if RULE.id in allowed | names:
            continue
        used, start = used_on[comment.line], starts[comment.line - 1]
        place = "in this file" if comment.is_file_wide else "on this line"
        for name, span in comment.ids or (("", comment.span),):
            if name and name not in known:
                problem = f"there is no rule {name}.{did_you_mean(name, known)}".rstrip(".")
            elif is_complete and name in checked and name not in used:
                problem = f"there is no {name} to silence {place}"
            elif is_complete and not name and is_all_checked and not used:
                problem = f"there is nothing to silence {place}"
            else:
                continue
            yield _finding(path, lines, start, comment, problem, name, span)


@lru_cache(200)
def _find_comments(text: str) -> tuple[IgnoreComment, ...]:
    """The comments of a text that silence rules."""
    if "onsight:" not in text:
        return ()
    return tuple(
        _as_comment(match, *token.start)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
        for match in _COMMENT.finditer(token.string)
    )


def _as_comment(match: re.Match[str], line: int, column: int) -> IgnoreComment:
    def span(part: re.Match[str]) -> Span:
        return column + part.start(), column + part.end()

    ids = _ID.finditer(match.string, *match.span("ids")) if match["ids"] else ()
    named = tuple((part[0], span(part)) for part in ids)
    return IgnoreComment(line, span(match), bool(match["file"]), named)


def _covered_lines(source: SourceFile, node: ast.AST) -> range:
    """The lines of a node, of its simple statement, or of the head of its compound statement."""
    body = getattr(node, "body", None)
    first = start_position(node)[0]
    if isinstance(body, list) and body:
        return range(first, max(start_position(body[0])[0], first + 1))
    statement = source.statement(node)
    if not hasattr(statement, "body"):
        return range(start_position(statement)[0], end_position(statement)[0] + 1)
    return range(first, end_position(node)[0] + 1)


def _finding(
    path: Path,
    lines: Sequence[str],
    line_start: int,
    comment: IgnoreComment,
    problem: str,
    name: str,
    span: Span,
) -> Finding:
    """The finding that an id, or a comment without ids, silences nothing."""
    line = lines[comment.line - 1]
    (start, end), new = _removal(comment, line, name)
    fixed = f"{line[:start]}{new}{line[end:]}"
    if not fixed.strip() and comment.line < len(lines):
        start, end = 0, len(line) + 1  # nothing is left of the line
    end_column = len(line[: span[1]].rstrip())
    return Finding(
        file=path,
        line=comment.line,
        column=span[0] + 1,
        end_line=comment.line,
        end_column=end_column + 1,
        rule=RULE.id,
        problem=problem,
        why=RULE.why,
        fixed=fixed.rstrip(),
        changes=(Change(line_start + start, line_start + end, new),),
    )


def _removal(comment: IgnoreComment, line: str, name: str) -> tuple[Span, str]:
    """The part of a comment's line to replace, and the new text, so that an id is removed."""
    ids = [other for other, _ in comment.ids]
    if len(ids) > 1:
        first, last = comment.ids[0][1][0], comment.ids[-1][1][1]
        return (first, last), ", ".join(other for other in dict.fromkeys(ids) if other != name)
    start, end = comment.span
    if end < len(line):  # another comment follows
        return (start, end), ""
    return (len(line[:start].rstrip()), end), ""
