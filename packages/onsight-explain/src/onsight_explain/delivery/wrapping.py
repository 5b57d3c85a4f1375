"""Lines that mends have made too long, laid out anew: calls, values side by side, comments."""

import ast
import textwrap
import tokenize
from itertools import pairwise

from onsight_explain.mend.calls import tokens_of
from onsight_explain.mend.draft import CannotMend, Change, Draft

_WIDTH = 100
_MOST = 20  # of which each becomes shorter; a call inside a long call may follow


def wrap_new_lines(draft: Draft) -> None:
    """Wrap what stands in lines that are too long and were not in the file before."""
    kept = set(draft.original.lines)
    for _ in range(_MOST):
        parts: list[ast.Call | ast.Tuple] = [*_values(draft), *_calls(draft)]
        long = (one for one in parts if _is_long(draft, one, kept))
        changes = next(filter(None, (_wrapped(draft, one) for one in long)), None)
        if changes is None:
            return
        draft.change(changes)


def comment(text: str, margin: str = "") -> str:
    """Words as a comment of one or several lines, to stand behind a margin."""
    width = _WIDTH - len(margin) - len("# ")
    lines = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def _calls(draft: Draft) -> list[ast.Call]:
    """Calls with arguments in one line, the outermost first; none inside an f-string."""
    source = draft.source
    found = [
        one
        for one in source.nodes
        if isinstance(one, ast.Call)
        and one.lineno == one.end_lineno
        and (one.args or one.keywords)
        and not any(isinstance(other, ast.JoinedStr) for other in source.ancestors(one))
    ]
    return sorted(found, key=lambda one: (one.lineno, one.col_offset, -(one.end_col_offset or 0)))


def _values(draft: Draft) -> list[ast.Tuple]:
    """What several names get in one line, without parentheses around it."""
    found = [one.value for one in draft.source.nodes if isinstance(one, ast.Assign)]
    return [
        one
        for one in found
        if isinstance(one, ast.Tuple)
        and one.lineno == one.end_lineno
        and draft.source.start(one) == draft.source.start(one.elts[0])
    ]


def _is_long(draft: Draft, node: ast.expr, kept: set[str]) -> bool:
    line = draft.source.lines[node.lineno - 1]
    return len(line.rstrip("\r")) > _WIDTH and line not in kept


def _wrapped(draft: Draft, node: ast.Call | ast.Tuple) -> list[Change] | None:
    """The change that gives its parts lines of their own, where that can be made."""
    margin = draft.source.indentation(node)
    inner = margin + draft.unit
    if isinstance(node, ast.Tuple):
        rows = "".join(f"{inner}{draft.source.code(one)},\n" for one in node.elts)
        if "".join(rows.split()) != "".join(f"{draft.source.code(node)},".split()):
            return None  # there is more between its parts than commas
        return [(draft.source.start(node), draft.source.end(node), f"(\n{rows}{margin})")]
    try:
        opening, commas, closing = _places(draft, node)
    except (CannotMend, tokenize.TokenError):
        return None
    start = draft.text.rfind("\n", 0, opening) + 1
    if opening - start >= _WIDTH:  # what is too long comes before
        return None
    parts = [draft.text[a + 1 : b].strip() for a, b in pairwise([opening, *commas, closing])]
    parts = [one for one in parts if one]
    together = f"{inner}{', '.join(parts)}\n"
    if len(together) > _WIDTH + 1:
        after = "" if len(parts) == 1 else ","  # which a lone generator must not have
        together = "".join(f"{inner}{one}{after}\n" for one in parts)
    return [(opening + 1, closing, f"\n{together}{margin}")]


def _places(draft: Draft, call: ast.Call) -> tuple[int, list[int], int]:
    """Where a call's parenthesis opens, where commas part its arguments, and where it closes."""
    tokens = [one for one in tokens_of(draft, call) if one[0] == tokenize.OP]
    depth, commas = 0, list[int]()
    for _, text, at in reversed(tokens):
        depth += (text in ")]}") - (text in "([{")
        if depth == 0:
            return at, commas[::-1], tokens[-1][2]
        if depth == 1 and text == ",":
            commas.append(at)
    raise CannotMend("its parentheses were not found")
