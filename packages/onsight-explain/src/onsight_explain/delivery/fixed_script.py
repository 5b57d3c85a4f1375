"""Apply fixes to a script's text, and list the changes made and those left to the user."""

import ast
import difflib
import re
import textwrap
import tokenize
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from onsight_explain.delivery.frameworks import framework_fixes
from onsight_explain.errors import ExplainError
from onsight_explain.fixes.calls import call_tokens
from onsight_explain.fixes.draft import CannotFix, Draft, insert_before, read_draft, replace_node
from onsight_explain.fixes.fix import Fix, FixGroup
from onsight_explain.fixes.whole_file import add_import
from onsight_explain.script.trace import Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.what_if import WhatIf, in_order
from onsight_lint.edits import Change

MARK = "Fixed by Onsight from"  # in a comment at the top of the files that we write

# For evaluation's loader to matter: its share of the time, or of the images.
_EVALUATION_TIME, _EVALUATION_IMAGES = 0.05, 0.1
_ELSEWHERE = "it is in"
_MUST_BE_FIRST = re.compile(r"#!|#.*coding[:=]")
_WIDTH = 100
_MAX_WRAPS = 20  # each makes a line shorter; a call inside a long call may be next


@dataclass(frozen=True)
class SuggestedChange:
    """What to write at a line of a user's file."""

    site: Site | None  # None if it is unknown
    text: str
    left: str = ""  # why the fix was not made, or ""


@dataclass(frozen=True)
class FixedScript:
    """A script before and after its fixes."""

    script: Path
    before: bytes
    after: bytes
    lines: list[SuggestedChange]
    outside: list[str]  # changes of the command that starts the script

    @property
    def is_changed(self) -> bool:
        """Whether any fix changed the script's text."""
        return any(not line.left and line.text not in self.outside for line in self.lines)

    def diff(self, name: str, context: int = 3) -> str:
        """Return a unified diff from the script to a file of this name, with lines of context."""
        old, new = (
            raw.decode("utf-8", "replace").splitlines() for raw in (self.before, self.after)
        )
        return "\n".join(
            difflib.unified_diff(old, new, self.script.name, name, n=context, lineterm="")
        )


def fix_script(script: Path, fixes: list[Fix], notes: Sequence[str] = ()) -> FixedScript:
    """Make fixes in a script's text, with notes at its top.

    Raises ExplainError if the script cannot be read.
    """
    script = script.resolve()
    main = read_draft(script)
    before, drafts = main.encoded(), {str(script): main}
    results: dict[object, _Result] = {}
    for fix in fixes:
        for result in _try_fix(fix, main, drafts):  # the last one of a place covers all
            results[result.fix.merge_key, result.left] = result
    lines = [_suggested_change(result) for result in results.values()]
    for result in results.values():
        if result.left and result.draft is main:
            _add_todo(main, result.fix)
    wrap_new_lines(main)
    outside = [result.fix.instruction for result in results.values() if not result.fix.edits_text]
    elsewhere = [
        f"{line.site}: {line.text}"
        for line, result in zip(lines, results.values(), strict=True)
        if result.left and result.draft is not main
    ]
    _add_header(main, [f"{MARK} {script.name}.", *outside, *elsewhere, *notes])
    return FixedScript(script, before, main.encoded(), lines, outside)


def list_cautions(what_ifs: Sequence[WhatIf], trace: Trace) -> list[str]:
    """Return what else to change or check when making these changes."""
    return [caution for what_if in what_ifs if (caution := what_if.caution(trace))]


def fixes_for(what_ifs: Sequence[WhatIf], trace: Trace) -> list[Fix]:
    """Return the fixes that make these changes in the text, in the order of application."""
    fixes: list[Fix] = []
    evaluation_trace = _evaluation_trace(trace)
    for what_if in in_order(what_ifs):
        own = framework_fixes(what_if, trace) or what_if.fixes(trace)
        loader = evaluation_trace.loader if evaluation_trace else None
        if evaluation_trace and loader and what_if.applies_to_evaluation(loader):
            own = [*own, *what_if.fixes(evaluation_trace)]
        fixes += [fix for fix in own if fix not in fixes]
    return fixes


def wrap_new_lines(draft: Draft) -> None:
    """Wrap calls and tuples in lines that are too long and were not in the file before."""
    old_lines = set(draft.original.lines)
    for _ in range(_MAX_WRAPS):
        nodes: list[ast.Call | ast.Tuple] = [*_bare_tuples(draft), *_calls(draft)]
        long = (node for node in nodes if _is_long(draft, node, old_lines))
        changes = next(filter(None, (_wrap(draft, node) for node in long)), None)
        if changes is None:
            return
        draft.change(changes)


def comment(text: str, indentation: str = "") -> str:
    """Return text as a comment of one or more lines, to be placed after an indentation."""
    width = _WIDTH - len(indentation) - len("# ")
    lines = [
        part
        for line in text.splitlines()
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        or [""]
    ]
    return "\n".join(f"# {line}".rstrip() for line in lines)


@dataclass(frozen=True)
class _Result:
    """A fix, the file in which it was tried, and why it is not in the script ("" if it is)."""

    fix: Fix
    draft: Draft | None
    left: str = ""


def _evaluation_trace(trace: Trace) -> Trace | None:
    """Return the trace with evaluation's loader as its loader, if the script created it."""
    loader, images = trace.evaluation_loader, trace.images + trace.evaluated
    matters = (
        trace.share("evaluation") >= _EVALUATION_TIME
        or trace.evaluated > _EVALUATION_IMAGES * images
    )
    if loader is None or loader.site is None or loader.maker or not matters:
        return None
    if trace.loader and trace.loader.site == loader.site:  # one call creates both
        return None
    return replace(trace, loader=loader)


def _try_fix(fix: Fix, main: Draft, drafts: dict[str, Draft]) -> list[_Result]:
    """Apply all parts of a fix to the drafts of their files, or none of them."""
    parts = fix.parts if isinstance(fix, FixGroup) else (fix,)
    states = {name: (draft.source, list(draft.history)) for name, draft in drafts.items()}
    results: list[_Result] = []
    for part in parts:
        try:
            results.append(_make_fix(part, main, drafts))
        except CannotFix as reason:
            for name, state in states.items():
                drafts[name].source, drafts[name].history = state
            for name in drafts.keys() - states.keys():
                del drafts[name]
            return [_Result(part, _draft_of(part, main, drafts), str(reason)) for part in parts]
    return results


def _make_fix(fix: Fix, main: Draft, drafts: dict[str, Draft]) -> _Result:
    draft = _draft_of(fix, main, drafts)
    if draft is None:
        raise CannotFix("its file cannot be read")
    if fix.site is None and fix.needs_site:
        raise CannotFix("its line is not known")
    fix.apply(draft)
    for statement in fix.imports:
        add_import(draft, statement)
    return _Result(fix, draft, "" if draft is main else f"{_ELSEWHERE} {draft.path.name}")


def _draft_of(fix: Fix, main: Draft, drafts: dict[str, Draft]) -> Draft | None:
    """Return the draft of the file that a fix is for; None if it cannot be read."""
    if fix.site is None:
        return main
    name = fix.site.file
    try:
        return drafts.setdefault(name, drafts.get(name) or read_draft(Path(name)))
    except ExplainError:
        return None


def _suggested_change(result: _Result) -> SuggestedChange:
    """Describe a fix after all fixes were applied."""
    fix, draft = result.fix, result.draft
    site = Site(file=fix.site.file, line=fix.site.line) if fix.site and fix.needs_site else None
    is_made = draft is not None and (not result.left or result.left.startswith(_ELSEWHERE))
    text = fix.summary(draft) if draft and is_made else fix.instruction
    return SuggestedChange(site, text, result.left)


def _add_todo(draft: Draft, fix: Fix) -> None:
    """Leave a fix that could not be made as a comment at its site, or at the top."""
    todo = f"To do: {fix.instruction}"
    try:
        if fix.site is None:
            raise CannotFix("its line is not known")
        statement = draft.find_statement(fix.site)
        text = comment(todo, draft.source.indentation(statement))
        draft.change([insert_before(draft, statement, text)])
    except CannotFix:
        _add_header(draft, [todo])


def _add_header(draft: Draft, lines: list[str]) -> None:
    """Add comments at the top of a file, below a `#!` line and an encoding comment."""
    offset = 0
    for line in draft.source.lines[:2]:
        if not _MUST_BE_FIRST.match(line):
            break
        offset += len(line) + 1
    text = "".join(f"{comment(line)}\n" for line in lines)
    draft.change([(min(offset, len(draft.text)),) * 2 + (text,)])


def _calls(draft: Draft) -> list[ast.Call]:
    """Return the calls with arguments in one line, outermost first; none inside an f-string."""
    source = draft.source
    calls = [
        call
        for call in source.all(ast.Call)
        if call.lineno == call.end_lineno
        and (call.args or call.keywords)
        and not any(isinstance(outer, ast.JoinedStr) for outer in source.ancestors(call))
    ]
    return sorted(calls, key=lambda call: (call.lineno, call.col_offset, -call.end_col_offset))


def _bare_tuples(draft: Draft) -> list[ast.Tuple]:
    """Return the tuples without parentheses that are assigned in one line."""
    values = [node.value for node in draft.source.all(ast.Assign)]
    return [
        value
        for value in values
        if isinstance(value, ast.Tuple)
        and value.lineno == value.end_lineno
        and draft.source.start(value) == draft.source.start(value.elts[0])
    ]


def _is_long(draft: Draft, node: ast.expr, old_lines: set[str]) -> bool:
    line = draft.source.lines[node.lineno - 1]
    return len(line.rstrip("\r")) > _WIDTH and line not in old_lines


def _wrap(draft: Draft, node: ast.Call | ast.Tuple) -> list[Change] | None:
    """Return the changes that put the node's parts on separate lines, or None if that fails."""
    margin = draft.source.indentation(node)
    inner = margin + draft.indent
    if isinstance(node, ast.Tuple):
        rows = "".join(f"{inner}{draft.source.code(element)},\n" for element in node.elts)
        if "".join(rows.split()) != "".join(f"{draft.source.code(node)},".split()):
            return None  # there is more between its parts than commas
        return [replace_node(draft, node, f"(\n{rows}{margin})")]
    try:
        opening, commas, closing = _argument_offsets(draft, node)
    except (CannotFix, tokenize.TokenError):
        return None
    start = draft.text.rfind("\n", 0, opening) + 1
    if opening - start >= _WIDTH:  # the part before the call is too long by itself
        return None
    offsets = [opening, *commas, closing]
    arguments = [draft.text[begin + 1 : end].strip() for begin, end in pairwise(offsets)]
    arguments = [argument for argument in arguments if argument]
    rows = f"{inner}{', '.join(arguments)}\n"
    if len(rows) > _WIDTH + 1:
        comma = "" if len(arguments) == 1 else ","  # a lone generator must not have one
        rows = "".join(f"{inner}{argument}{comma}\n" for argument in arguments)
    return [Change(opening + 1, closing, f"\n{rows}{margin}")]


def _argument_offsets(draft: Draft, call: ast.Call) -> tuple[int, list[int], int]:
    """Return where a call's parenthesis opens, where its commas are, and where it closes."""
    operators = [token for token in call_tokens(draft, call) if token[0] == tokenize.OP]
    depth, commas = 0, list[int]()
    for _, text, offset in reversed(operators):
        depth += (text in ")]}") - (text in "([{")
        if depth == 0:
            return offset, commas[::-1], operators[-1][2]
        if depth == 1 and text == ",":
            commas.append(offset)
    raise CannotFix("its parentheses were not found")
