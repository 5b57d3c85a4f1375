"""A script with mends made in its text: what was changed, and what is left to the user, by line."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onsight_explain.delivery.frameworks import framework_mends
from onsight_explain.delivery.target import MARK
from onsight_explain.delivery.wrapping import comment, wrap_new_lines
from onsight_explain.errors import ExplainError
from onsight_explain.mend.draft import CannotMend, Draft, read_draft
from onsight_explain.mend.layout import line_before
from onsight_explain.mend.mend import Mend, Together
from onsight_explain.mend.whole import need_import
from onsight_explain.script.trace import Trace
from onsight_explain.tracing.sites import Site
from onsight_explain.what_ifs.table import in_order
from onsight_explain.what_ifs.what_if import WhatIf

_MATTERS, _EVALUATED = 0.05, 0.1  # of the time, of the images: for evaluation's loader to matter
_ELSEWHERE = "it is in"
_FIRST_LINES = re.compile(r"#!|#.*coding[:=]")


@dataclass(frozen=True)
class Line:
    """What to write, and at which line of a user's file; site: None if that is unknown.

    left: why the mended file does not have it, or "".
    """

    site: Site | None
    text: str
    left: str = ""


@dataclass(frozen=True)
class Mended:
    """A script before and after its mends; outside: what to do when it is started."""

    script: Path
    before: bytes
    after: bytes
    lines: list[Line]
    outside: list[str]

    @property
    def is_changed(self) -> bool:
        """Whether any mend was made in the script itself."""
        return any(not one.left and one.text not in self.outside for one in self.lines)

    def diff(self, name: str) -> str:
        """A unified diff from the script to a file of this name."""
        old, new = (
            raw.decode("utf-8", "replace").splitlines() for raw in (self.before, self.after)
        )
        return "\n".join(difflib.unified_diff(old, new, self.script.name, name, lineterm=""))


@dataclass(frozen=True)
class _Result:
    """A mend, with the file in which it was tried, and why it is not in the script, or ""."""

    mend: Mend
    draft: Draft | None
    left: str = ""


def mend_script(script: Path, mends: list[Mend]) -> Mended:
    """Make mends in a script's text. Raises ExplainError if the script cannot be read."""
    script = script.resolve()
    first = read_draft(script)
    before, drafts = first.encoded(), {str(script): first}
    results: dict[object, _Result] = {}
    for mend in mends:
        for result in _tried(mend, first, drafts):
            results[result.mend.place, result.left] = result  # of one place, the last tells all
    lines = [_line(one) for one in results.values()]
    for one in results.values():
        if one.left and one.draft is first:
            _comment(first, one.mend)
    wrap_new_lines(first)
    outside = [one.mend.words for one in results.values() if not one.mend.is_text]
    elsewhere = [
        f"{line.site}: {line.text}"
        for line, one in zip(lines, results.values(), strict=True)
        if one.left and one.draft is not first
    ]
    _head(first, [f"{MARK} {script.name}.", *outside, *elsewhere])
    return Mended(script, before, first.encoded(), lines, outside)


def merged(mends: list[Mend], script: Path) -> list[Line]:
    """The lines of advice alone."""
    return mend_script(script, mends).lines


def mends_of(what_ifs: Sequence[WhatIf], trace: Trace) -> list[Mend]:
    """The mends that make these changes, in the order of application."""
    found: list[Mend] = []
    judging = _as_evaluated(trace)
    for one in in_order(what_ifs):
        mends = framework_mends(one, trace) or one.lines(trace)
        if judging and judging.loader and one.is_for(judging.loader):
            mends = [*mends, *one.lines(judging)]
        found += [mend for mend in mends if mend not in found]
    return found


def _as_evaluated(trace: Trace) -> Trace | None:
    """The trace with evaluation's loader for the one that trains, if it is the script's own."""
    loader, every = trace.evaluation_loader, trace.images + trace.evaluated
    matters = trace.share("evaluation") >= _MATTERS or trace.evaluated > _EVALUATED * every
    if loader is None or loader.site is None or loader.maker or not matters:
        return None
    if trace.loader and trace.loader.site == loader.site:  # one call makes both
        return None
    return replace(trace, loader=loader)


def _tried(mend: Mend, first: Draft, drafts: dict[str, Draft]) -> list[_Result]:
    """Make a mend and all its parts in the drafts of their files, or leave these as they were."""
    parts = mend.parts if isinstance(mend, Together) else (mend,)
    states = {name: (draft.source, list(draft.history)) for name, draft in drafts.items()}
    results: list[_Result] = []
    for part in parts:
        try:
            results.append(_made(part, first, drafts))
        except CannotMend as reason:
            for name, state in states.items():
                drafts[name].source, drafts[name].history = state
            for name in drafts.keys() - states.keys():
                del drafts[name]
            return [_Result(one, _draft_of(one, first, drafts), str(reason)) for one in parts]
    return results


def _made(mend: Mend, first: Draft, drafts: dict[str, Draft]) -> _Result:
    draft = _draft_of(mend, first, drafts)
    if draft is None:
        raise CannotMend("its file cannot be read")
    if mend.site is None and mend.needs_site:
        raise CannotMend("its line is not known")
    mend.apply(draft)
    for statement in mend.imports:
        need_import(draft, statement)
    return _Result(mend, draft, "" if draft is first else f"{_ELSEWHERE} {draft.path.name}")


def _draft_of(mend: Mend, first: Draft, drafts: dict[str, Draft]) -> Draft | None:
    """The draft of the file that a mend is for; None if it cannot be read."""
    if mend.site is None:
        return first
    name = mend.site.file
    try:
        return drafts.setdefault(name, drafts.get(name) or read_draft(Path(name)))
    except ExplainError:
        return None


def _line(result: _Result) -> Line:
    """What to tell of a mend, after all of them were made."""
    mend, draft = result.mend, result.draft
    site = Site(file=mend.site.file, line=mend.site.line) if mend.site and mend.needs_site else None
    is_made = draft is not None and (not result.left or result.left.startswith(_ELSEWHERE))
    return Line(site, mend.told(draft) if draft and is_made else mend.words, result.left)


def _comment(draft: Draft, mend: Mend) -> None:
    """Leave a mend that could not be made as a comment at its site, or at the top."""
    try:
        assert mend.site
        statement = draft.statement(mend.site)
        text = comment(f"To do: {mend.words}", draft.source.indentation(statement))
        draft.change([line_before(draft, statement, text)])
    except (AssertionError, CannotMend):
        _head(draft, [f"To do: {mend.words}"])


def _head(draft: Draft, lines: list[str]) -> None:
    """Comments at the top of a file, below what must stay in its first two lines."""
    at = 0
    for row in draft.source.lines[:2]:
        if not _FIRST_LINES.match(row):
            break
        at += len(row) + 1
    text = "".join(f"{comment(line)}\n" for line in lines)
    draft.change([(min(at, len(draft.text)),) * 2 + (text,)])
