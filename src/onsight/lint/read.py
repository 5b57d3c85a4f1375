"""Reads a training script without running it: every mistake found, with its line fixed."""

import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from onsight.lint import rules
from onsight.lint.context import Context
from onsight.lint.rule import Rule
from onsight.lint.source import start_place


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
    findings = [one for rule in all_rules() for one in _findings(rule, context)]
    files = [source.path for source in context.script.sources]
    return sorted(findings, key=lambda one: (files.index(one.file), one.line, one.rule))


def all_rules() -> list[Rule]:
    """The RULE of every file in the folder rules, in the order of the file names."""
    modules = pkgutil.iter_modules(rules.__path__, f"{rules.__name__}.")
    return [import_module(module.name).RULE for module in modules]


def _findings(rule: Rule, context: Context) -> Iterator[Finding]:
    for one in rule.find(context):
        file, line = context.script.source(one.node).path, start_place(one.node)[0]
        yield Finding(file, line, rule.id, one.problem, one.why or rule.why, one.fixed)
