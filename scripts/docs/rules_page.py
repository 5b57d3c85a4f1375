"""The page of lint rules: each with a planted mistake and the corrected lines."""

from pathlib import Path

from commands_page import escape

from onsight_lint.read import rule_table, select_rules
from onsight_lint.read_many import read_many
from onsight_lint.rule import Finding
from onsight_lint.script import Library

PLANTED = Path(__file__).parents[2] / "packages/onsight-lint/tests/planted"


def rules_page() -> str:
    """Return the page."""
    examples: dict[str, Finding] = {}
    for path in sorted(PLANTED.glob("*.py"), key=lambda path: (path.stat().st_size, path)):
        for finding in read_many([path], Library(), select_rules()).sorted:
            examples.setdefault(finding.rule, finding)
    lines = [
        "# Lint rules",
        "",
        "What `onsight lint` finds in training scripts. `# onsight: ignore[id]`",
        "silences a rule on its line; [Your own training script](../guides/scripts.md) shows",
        "how to use the linter.",
        "",
    ]
    for rule in rule_table().values():
        finding = examples[rule.id]
        script = finding.file.read_text(encoding="utf-8").splitlines()
        wrong = script[finding.line - 1 : finding.end_line]
        lines += [f"## {rule.id}", "", f"**{escape(rule.title)}.**", ""]
        lines += [escape(finding.why), "", '```python title="Mistake"', *_dedent(wrong), "```", ""]
        if finding.fixed:
            fixed = _dedent(finding.fixed.splitlines())
            lines += ['```python title="Corrected"', *fixed, "```", ""]
        lines += ["`--fix` makes this change.", ""] if finding.changes else []
    return "\n".join(lines)


def _dedent(lines: list[str]) -> list[str]:
    """Remove the test's comments, and the indentation that all lines share."""
    lines = [line.partition("  # expect:")[0].partition("  # noqa")[0] for line in lines]
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return [line[indent:] for line in lines]
