"""Findings as SARIF 2.1.0, the format of code scanning."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onsight_lint.paths import shown
from onsight_lint.read import Finding
from onsight_lint.rule import Rule

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_sarif(findings: Sequence[Finding], rules: Sequence[Rule], version: str) -> str:
    """One run of the tool, with its rules and a result for each finding."""
    driver = {"name": "onsight", "version": version, "rules": [_rule(one) for one in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(one) for one in findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "defaultConfiguration": {"level": "warning"},
    }


def _result(one: Finding) -> dict[str, Any]:
    name = shown(one.file)
    uri = one.file.as_uri() if Path(name).is_absolute() else Path(name).as_posix()
    region = {
        "startLine": one.line,
        "startColumn": one.column,
        "endLine": one.end_line,
        "endColumn": one.end_column,
    }
    place = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": one.rule,
        "level": "warning",
        "message": {"text": f"{one.problem}. {one.why}"},
        "locations": [{"physicalLocation": place}],
    }
