"""Apply the rules to a script and the modules that it imports, without running anything."""

import pkgutil
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from onsight_lint import rules
from onsight_lint.errors import LintError, ReadError, did_you_mean
from onsight_lint.ignores import Silenced, silencing
from onsight_lint.rule import Context, Finding, Mistake, Rule
from onsight_lint.script import Library, Script
from onsight_lint.source import SourceFile, parse
from onsight_lint.syntax import end_position, start_position


@dataclass(frozen=True)
class ScriptReport:
    """The result of applying rules to a script."""

    findings: list[Finding]
    files: list[Path]  # that were read for it
    silenced: frozenset[Silenced] = frozenset()


def read_script(path: Path) -> list[Finding]:
    """Return the mistakes in a script and in the modules in its folder that it imports.

    Those of the script itself come first, and those of a file are sorted by line. Raises
    ReadError, with file and line, if the script is not valid Python.
    """
    return check_script(Path(path), Library(), list(rule_table().values())).findings


def check_script(
    path: Path, library: Library, applied: Sequence[Rule], alone: bool = False
) -> ScriptReport:
    """Apply some rules to a script. alone: skip the modules that it imports.

    Raises ReadError.
    """
    if alone and not _matching_patterns(applied, [library.text(path)]):
        parse(path, library.text(path))  # raises the file's syntax errors
        return ScriptReport([], [path])
    script = Script(path, library, alone)
    patterns = _matching_patterns(applied, [source.text for source in script.sources])
    context = Context(script)
    findings: list[Finding] = []
    silenced: set[Silenced] = set()
    try:
        for rule in applied:
            for mistake in rule.check(context) if rule.pattern in patterns else ():
                source = script.source(mistake.node)
                if comments := silencing(source, mistake.node, rule.id):
                    silenced |= {Silenced(source.path, item.line, rule.id) for item in comments}
                else:
                    findings.append(_finding(rule, mistake, source))
    except RecursionError as error:
        raise ReadError(f"{path} cannot be read: its code is nested too deeply.") from error
    finally:
        vars(context).clear()  # breaks reference cycles, so that the trees are freed at once
    files = [source.path for source in script.sources]
    findings.sort(key=lambda finding: (files.index(finding.file), finding.line, finding.rule))
    return ScriptReport(findings, files, frozenset(silenced))


@cache
def rule_table() -> dict[str, Rule]:
    """Return the RULE of every module in the folder rules, by its id, in alphabetical order."""
    modules = pkgutil.iter_modules(rules.__path__, f"{rules.__name__}.")
    table: list[Rule] = [import_module(module.name).RULE for module in modules]
    return {rule.id: rule for rule in sorted(table, key=lambda rule: rule.id)}


def select_rules(select: str = "", ignore: str = "") -> list[Rule]:
    """Return the rules whose ids begin with a word of select, and with none of ignore.

    Words are separated by commas; no words select all. Raises LintError for a word that no id
    begins with.
    """
    table = rule_table()
    selected, ignored = _split_words(select), _split_words(ignore)
    for word in (*selected, *ignored):
        if not any(name.startswith(word) for name in table):
            raise LintError(
                f"no rule begins with {word}.{did_you_mean(word, table)} "
                f"The rules are {', '.join(table)}."
            )
    return [
        rule
        for name, rule in table.items()
        if (not selected or name.startswith(selected)) and not name.startswith(ignored)
    ]


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _matching_patterns(applied: Iterable[Rule], texts: Sequence[str]) -> set[str]:
    """Return the rules' patterns that match at least one of the texts."""
    patterns = {rule.pattern for rule in applied}  # many rules share theirs
    return {
        pattern
        for pattern in patterns
        if any(re.search(pattern, text, re.MULTILINE) for text in texts)
    }


def _finding(rule: Rule, mistake: Mistake, source: SourceFile) -> Finding:
    line, column = source.character(start_position(mistake.node))
    end_line, end_column = source.character(end_position(mistake.node))
    return Finding(
        file=source.path,
        line=line,
        column=column + 1,
        end_line=end_line,
        end_column=end_column + 1,
        rule=rule.id,
        problem=mistake.problem,
        why=mistake.why or rule.why,
        fixed=mistake.fixed,
        changes=tuple(mistake.changes),
    )
