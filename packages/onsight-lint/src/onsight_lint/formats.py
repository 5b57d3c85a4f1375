"""The formats of the output: text, JSON, GitHub annotations and SARIF."""

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onsight_lint.files import display_path, printable
from onsight_lint.read_many import LintResult
from onsight_lint.rule import Finding, Rule
from onsight_lint.script import Library

_WIDTH = 96
_RED, _GREEN, _BOLD, _FAINT, _PLAIN = "\033[31m", "\033[32m", "\033[1m", "\033[2m", "\033[0m"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_text(findings: Sequence[Finding], library: Library, in_color: bool) -> str:
    """Format findings for people: the line, what is wrong and why, and the corrected line."""
    files = {finding.file for finding in findings}
    lines = {file: library.text(file).split("\n") for file in files}
    parts = (_finding_text(finding, lines[finding.file], in_color) for finding in findings)
    return "".join(f"{part}\n" for part in parts)


def as_json(result: LintResult) -> str:
    """Format the findings, the files that could not be read and why, and the number of files."""
    facts = {
        "findings": [item.to_dict() | {"file": display_path(item.file)} for item in result.sorted],
        "unread": {display_path(path): why for path, why in sorted(result.unread.items())},
        "files": len(result.files),
    }
    return json.dumps(facts, indent=2) + "\n"


def as_github(findings: Sequence[Finding]) -> str:
    """Format findings as workflow commands, which GitHub shows as annotations on their lines."""
    return "".join(
        f"::warning file={_github_property(display_path(item.file))},line={item.line},"
        f"endLine={item.end_line},col={item.column},title={_github_property(item.rule)}"
        f"::{_github_message(f'{item.problem}. {item.why}')}\n"
        for item in findings
    )


def as_sarif(findings: Sequence[Finding], rules: Sequence[Rule], version: str) -> str:
    """Format findings as SARIF 2.1.0, the format of code scanning."""
    driver = {"name": "onsight", "version": version, "rules": [_sarif_rule(rule) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding) for finding in findings],
    }
    return (
        json.dumps({"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"
    )


def summary(result: LintResult, rules: Sequence[Rule]) -> str:
    """Return how many mistakes there are, such as `3 mistakes in 2 of 41 files`."""
    files = plural(len(result.files) - len(result.unread), "file")
    if not result.findings:
        return f"{plural(len(rules), 'rule')}, nothing found in {files}"
    with_mistakes = len({finding.file for finding in result.findings})
    return f"{plural(len(result.findings), 'mistake')} in {with_mistakes:,} of {files}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _finding_text(finding: Finding, lines: Sequence[str], in_color: bool) -> str:
    def painted(text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if in_color else text

    line = lines[finding.line - 1]
    is_one_line = finding.end_line == finding.line
    end_column = finding.end_column if is_one_line else len(line) + 1
    width = max(1, end_column - finding.column)
    number = str(finding.line)
    # Tabs stay tabs, so that the carets stand below the code.
    margin = "".join("\t" if letter == "\t" else " " for letter in line[: finding.column - 1])
    bar = painted("|", _FAINT)
    mark = " [--fix]" if finding.changes else ""
    place = f"{printable(display_path(finding.file))}:{finding.line}:{finding.column}"
    rows = [
        f"{painted(place, _BOLD)} {painted(finding.rule, _RED)}{mark} {printable(finding.problem)}",
        f"  {painted(number, _FAINT)} {bar} {printable(line)}",
        f"  {'':{len(number)}} {bar} {margin}{painted('^' * width, _RED)}",
        *(
            f"  {'+':>{len(number)}} {bar} {painted(printable(part), _GREEN)}"
            for part in finding.fixed.split("\n")
        ),
        textwrap.fill(finding.why, _WIDTH, initial_indent="  ", subsequent_indent="  "),
    ]
    return "\n".join(row.rstrip() for row in rows) + "\n"


def _github_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _github_property(text: str) -> str:
    return _github_message(text).replace(":", "%3A").replace(",", "%2C")


def _sarif_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": "warning"},
    }


def _sarif_result(finding: Finding) -> dict[str, Any]:
    name = display_path(finding.file)
    uri = finding.file.as_uri() if Path(name).is_absolute() else Path(name).as_posix()
    region = {
        "startLine": finding.line,
        "startColumn": finding.column,
        "endLine": finding.end_line,
        "endColumn": finding.end_column,
    }
    place = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": finding.rule,
        "level": "warning",
        "message": {"text": f"{finding.problem}. {finding.why}"},
        "locations": [{"physicalLocation": place}],
    }
