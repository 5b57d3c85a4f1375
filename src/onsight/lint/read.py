"""Reads a training script without running it: every mistake found, with its line fixed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onsight.lint.context import Context
from onsight.lint.rule import Rule
from onsight.lint.source import start_place
from onsight.lint.table import rule_table


@dataclass(frozen=True)
class Finding:
    """A mistake with its file and line; rule: the id of its rule, the rest as in Mistake."""

    file: Path
    line: int
    rule: str
    problem: str
    why: str
    fixed: str


def read_script(path: Path) -> list[Finding]:
    """The mistakes in a script and in the modules of its own folder that it imports.

    Those of the script itself come first, and within a file they are sorted by line. Raises
    DataError, with file and line, if a file is not valid Python.
    """
    context = Context(Path(path))
    findings = [one for rule in rule_table().values() for one in _findings(rule, context)]
    files = [source.path for source in context.script.sources]
    return sorted(findings, key=lambda one: (files.index(one.file), one.line, one.rule))


def _findings(rule: Rule, context: Context) -> Iterator[Finding]:
    for one in rule.check(context):
        file, line = context.script.source(one.node).path, start_place(one.node)[0]
        yield Finding(file, line, rule.id, one.problem, one.why or rule.why, one.fixed)
