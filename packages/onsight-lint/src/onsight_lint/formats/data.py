"""Findings for programs: JSON, and the annotations of GitHub's workflows."""

import json
from collections.abc import Sequence

from onsight_lint.many import Readings
from onsight_lint.paths import shown
from onsight_lint.read import Finding


def as_json(readings: Readings) -> str:
    """One object: findings, the files that were not read and why, and the number of files."""
    facts = {
        "findings": [one.facts() | {"file": shown(one.file)} for one in readings.sorted],
        "unread": {shown(path): said for path, said in sorted(readings.unread.items())},
        "files": len(readings.files),
    }
    return json.dumps(facts, indent=2) + "\n"


def as_github(findings: Sequence[Finding]) -> str:
    """A workflow command for each finding, which GitHub shows at its line of a pull request."""
    return "".join(
        f"::warning file={_property(shown(one.file))},line={one.line},endLine={one.end_line},"
        f"col={one.column},title={_property(one.rule)}::{_message(f'{one.problem}. {one.why}')}\n"
        for one in findings
    )


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
