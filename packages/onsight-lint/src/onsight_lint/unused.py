"""Finds the comments that silenced nothing, once every file has been read."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from onsight_lint.comments import Comment, Span, comments
from onsight_lint.errors import did_you_mean
from onsight_lint.read import Change, Finding
from onsight_lint.rules.unused_ignore import RULE
from onsight_lint.table import rule_table

Silenced = tuple[Path, int, str]  # the file and line of a comment, and the rule that it silenced

_RUNS = re.compile(r"__main__|^(?:for|while)\b|^\w+\(", re.MULTILINE)


def runs_by_itself(text: str) -> bool:
    """Whether a file is a script; what a module's comments silence depends on who imports it."""
    return bool(_RUNS.search(text))


def unused_ignores(
    path: Path, text: str, silenced: Collection[Silenced], checked: Collection[str], judged: bool
) -> Iterator[Finding]:
    """The ids in comments of a file that name no rule or, where judged, silenced none.

    checked: the ids of the rules that were looked for; of others nothing is known.
    """
    found = comments(text)
    allowed = {name for one in found if one.whole for name, _ in one.ids}
    for one in found:
        names = {name for name, _ in one.ids}
        if RULE.id in allowed | names:
            continue
        used = {rule for file, line, rule in silenced if (file, line) == (path, one.line)}
        for name, span in one.ids:
            if name not in rule_table():
                said = f"there is no rule {name}.{did_you_mean(name, rule_table())}".rstrip(".")
                yield _finding(path, text, one, said, name, span)
            elif judged and name in checked and name not in used:
                yield _finding(path, text, one, f"no {name} is found {_where(one)}", name, span)
        every = set(checked) >= set(rule_table())
        if judged and every and not one.ids and not used:
            yield _finding(path, text, one, f"nothing is found {_where(one)}", "", one.span)


def _where(comment: Comment) -> str:
    return "in this file" if comment.whole else "on this line"


def _finding(path: Path, text: str, comment: Comment, said: str, name: str, span: Span) -> Finding:
    """The finding that an id, or a comment without ids, is of no use."""
    lines = text.split("\n")
    line, begin = lines[comment.line - 1], sum(len(one) + 1 for one in lines[: comment.line - 1])
    (start, end), new = _removed(comment, line, name)
    fixed = f"{line[:start]}{new}{line[end:]}"
    if not fixed.strip() and comment.line < len(lines):
        start, end = 0, len(line) + 1  # the line goes, too
    change: Change = (begin + start, begin + end, new)
    end_column = len(line[: span[1]].rstrip())
    return Finding(
        file=path,
        line=comment.line,
        column=span[0] + 1,
        end_line=comment.line,
        end_column=end_column + 1,
        rule=RULE.id,
        problem=said,
        why=RULE.why,
        fixed=fixed.rstrip(),
        mend=(change,),
    )


def _removed(comment: Comment, line: str, name: str) -> tuple[Span, str]:
    """What to replace in a comment's line, and by what, so that an id is gone."""
    ids = [one for one, _ in comment.ids]
    if len(ids) > 1:
        first, last = comment.ids[0][1][0], comment.ids[-1][1][1]
        return (first, last), ", ".join(one for one in dict.fromkeys(ids) if one != name)
    start, end = comment.span
    before = line[:start].rstrip()
    if end < len(line):  # another comment follows in it
        return (start, end), ""
    return (len(before) if before else 0, end), ""
