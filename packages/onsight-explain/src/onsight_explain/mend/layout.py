"""Lines of a draft: statements on lines of their own, lines before and after, blocks indented."""

import ast
import io
import tokenize
from collections.abc import Sequence

from onsight_explain.mend.draft import CannotMend, Change, Draft


def siblings(draft: Draft, statement: ast.stmt) -> list[ast.stmt]:
    """The statements of the block that holds a statement, itself included."""
    parent = draft.source.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    raise CannotMend("it is not a statement of a block")


def on_own_lines(draft: Draft, pick: Sequence[int], block: list[ast.stmt]) -> list[Change]:
    """The changes after which these statements of a block share no line with another one.

    pick: the first and the last of them, as indices into the block.
    """
    gaps = []
    for left, right in ((pick[0] - 1, pick[0]), (pick[-1], pick[-1] + 1)):
        if left >= 0 and right < len(block) and _share_a_line(block[left], block[right]):
            gaps.append(_parting(draft, block[left], block[right], block[0]))
    first = block[pick[0]]
    parent = draft.source.parents[first]
    if not isinstance(parent, ast.Module) and _is_behind_a_colon(draft, block[0]):
        raise CannotMend("its block is written behind the colon, in the same line")
    return gaps


def line_start(draft: Draft, statement: ast.stmt) -> int:
    """Where the first line of a statement, or of its first decorator, begins."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([draft.source.start(statement), *(draft.source.start(one) for one in decorators)])
    return draft.text.rfind("\n", 0, first) + 1


def line_end(draft: Draft, statement: ast.stmt) -> int:
    """Where the line after a statement begins, or the end of the text."""
    at = draft.text.find("\n", draft.source.end(statement))
    return len(draft.text) if at < 0 else at + 1


def line_before(draft: Draft, statement: ast.stmt, text: str) -> Change:
    """Lines above a statement, indented like it."""
    margin = draft.source.indentation(statement)
    at = line_start(draft, statement)
    return at, at, "".join(f"{margin}{line}\n" for line in text.splitlines())


def line_after(draft: Draft, statement: ast.stmt, text: str) -> Change:
    """Lines below a statement, indented like it."""
    margin = draft.source.indentation(statement)
    at = line_end(draft, statement)
    lines = "".join(f"{margin}{line}\n" for line in text.splitlines())
    if at == len(draft.text) and not draft.text.endswith("\n"):
        return at, at, "\n" + lines.removesuffix("\n")
    return at, at, lines


def block_under(draft: Draft, first: ast.stmt, last: ast.stmt, opening: str) -> list[Change]:
    """Statements, with whole lines of their own, under lines such as `with x:`."""
    start, end = line_start(draft, first), line_end(draft, last)
    margin = draft.source.indentation(first)
    within_strings = _lines_within_strings(draft.text)
    above = "".join(f"{margin}{line}\n" for line in opening.splitlines())
    changes = [(start, start, f"{above}{draft.unit}")]
    at = draft.text.find("\n", start) + 1
    while 0 < at < end:
        line_number = draft.text.count("\n", 0, at) + 1
        stop = draft.text.find("\n", at) + 1
        line = draft.text[at : stop or len(draft.text)]
        if line.strip() and line_number not in within_strings:
            changes.append((at, at, draft.unit))
        at = stop
    return changes


def _share_a_line(left: ast.stmt, right: ast.stmt) -> bool:
    return left.end_lineno == right.lineno


def _parting(draft: Draft, left: ast.stmt, right: ast.stmt, first: ast.stmt) -> Change:
    """The semicolon between two statements becomes the end of a line."""
    start, end = draft.source.end(left), draft.source.start(right)
    between = draft.text[start:end]
    if between.replace(" ", "").replace("\t", "") != ";":
        raise CannotMend("two statements share its line")
    return start, end, f"\n{draft.source.indentation(first)}"


def _is_behind_a_colon(draft: Draft, first: ast.stmt) -> bool:
    start = draft.source.start(first)
    return draft.text[draft.text.rfind("\n", 0, start) + 1 : start].strip() != ""


def _lines_within_strings(text: str) -> set[int]:
    """The lines that begin inside a string, and would change it if they were indented."""
    found: set[int] = set()
    openings: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        name = tokenize.tok_name[token.type]
        if name == "STRING":
            found.update(range(token.start[0] + 1, token.end[0] + 1))
        elif name.endswith("STRING_START"):  # of an f-string, from Python 3.12 on
            openings.append(token.start[0])
        elif name.endswith("STRING_END"):
            found.update(range(openings.pop() + 1, token.end[0] + 1))
    return found


def span(draft: Draft, first: ast.stmt, last: ast.stmt) -> str:
    """The lines of a block, in words, as the file was before any mend."""
    begin, end = draft.original_line(first.lineno), draft.original_line(last.end_lineno or 0)
    return f"line {begin}" if begin == end else f"lines {begin} to {end}"
