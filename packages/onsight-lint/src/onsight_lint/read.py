"""Reads a training script without running it: every mistake found, with its line fixed."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onsight_lint.comments import silencing
from onsight_lint.context import Context
from onsight_lint.errors import ReadError
from onsight_lint.library import Library
from onsight_lint.rule import Rule
from onsight_lint.script import Script
from onsight_lint.source import Place, end_place, parsed, start_place
from onsight_lint.table import rule_table

Change = tuple[int, int, str]  # from, to (indices into the text of the file), the new text


@dataclass(frozen=True)
class Finding:
    """A mistake with its place; rule: the id of its rule, the rest as in Mistake.

    line and end_line count from 1, column and end_column (just after the end) too, in characters.
    """

    file: Path
    line: int
    column: int
    end_line: int
    end_column: int
    rule: str
    problem: str
    why: str
    fixed: str
    mend: tuple[Change, ...] = ()

    @property
    def place(self) -> tuple[str, int, int, str]:
        """What findings are sorted by."""
        return str(self.file), self.line, self.column, self.rule

    def facts(self) -> dict[str, Any]:
        """The finding as JSON."""
        names = ("line", "column", "end_line", "end_column", "rule", "problem", "why", "fixed")
        known = {name: getattr(self, name) for name in names}
        return {"file": str(self.file), **known, "fixable": bool(self.mend)}


@dataclass(frozen=True)
class Reading:
    """The findings in a script, the files that were read for it, and what comments silenced."""

    findings: list[Finding]
    files: list[Path]
    silenced: frozenset[tuple[Path, int, str]] = frozenset()  # the comment's line; the rule


def read_script(path: Path) -> list[Finding]:
    """The mistakes in a script and in the modules of its own folder that it imports.

    Those of the script itself come first, and within a file they are sorted by line. Raises
    ReadError, with file and line, if a file is not valid Python.
    """
    return read(Path(path), Library(), rule_table().values()).findings


def read(path: Path, library: Library, rules: Iterable[Rule], alone: bool = False) -> Reading:
    """The same with some of the rules; alone: whether its modules are left out."""
    rules = list(rules)
    if alone and not _said(rules, [library.text(path)]):
        parsed(path, library.text(path))  # for its errors
        return Reading([], [path])
    script = Script(path, library, alone)
    said = _said(rules, [source.text for source in script.sources])
    context = Context(script)
    silenced: set[tuple[Path, int, str]] = set()
    wanted = [rule for rule in rules if rule.words in said]
    try:
        found = [one for rule in wanted for one in _findings(rule, context, silenced)]
    except RecursionError as error:
        raise ReadError(f"{path} cannot be read: its code is nested too deeply.") from error
    finally:
        vars(context).clear()  # no circle is left, so the trees are freed at once
    files = [source.path for source in script.sources]
    found.sort(key=lambda one: (files.index(one.file), one.line, one.rule))
    return Reading(found, files, frozenset(silenced))


def _said(rules: Iterable[Rule], texts: Sequence[str]) -> set[str]:
    """Those words of rules that are found in one of the texts."""
    patterns = {rule.words for rule in rules}  # many rules share theirs
    return {words for words in patterns if any(re.search(words, text) for text in texts)}


def _findings(
    rule: Rule, context: Context, silenced: set[tuple[Path, int, str]]
) -> Iterator[Finding]:
    """What a rule finds; what a comment silences is noted instead."""
    for one in rule.check(context):
        source = context.script.source(one.node)
        if comments := silencing(source, one.node, rule.id):
            silenced |= {(source.path, comment.line, rule.id) for comment in comments}
            continue
        line, column = _counted(source.character(start_place(one.node)))
        end_line, end_column = _counted(source.character(end_place(one.node)))
        mend = tuple((source.offset(a), source.offset(b), new) for a, b, new in one.mend)
        why = one.why or rule.why
        yield Finding(
            source.path,
            line,
            column,
            end_line,
            end_column,
            rule.id,
            one.problem,
            why,
            one.fixed,
            mend,
        )


def _counted(place: Place) -> Place:
    return place[0], place[1] + 1
