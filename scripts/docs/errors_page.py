"""The page of errors: exception classes, and every message found in the code."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from commands_page import escape

import onsight.errors
import onsight_explain.errors
import onsight_lint.errors
from onsight.audit.finding import GROUPS, KINDS
from onsight.doctor.examine import CHECKS

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "src", *sorted(ROOT.glob("packages/*/src")))
_MODULES = (onsight.errors, onsight_explain.errors, onsight_lint.errors)
_BASES = {"OnsightError", "ExplainError", "LintError", "ImageError"}
_GAP = "…"  # stands for what differs from message to message
# Packages of onsight by the heading of their messages; the others belong to the first heading.
_AREAS = {
    "Command line, settings and files": "",
    "Data": "data",
    "Models and weights": "models",
    "Training": "training tune step ranks cluster sweeper",
    "Evaluating and predicting": "inference evaluation features heatmaps report estimator",
    "Checking images": "audit",
    "Exporting": "export",
    "Serving": "serve",
    "Explaining and linting": "explainer onsight_explain onsight_lint",
    "Machine": "doctor hardware",
}


@dataclass(frozen=True)
class Call:
    """A call in the code, and the function around it."""

    file: Path
    node: ast.Call
    scope: ast.AST

    def text(self, position: int) -> list[str]:
        """Return the templates that an argument can have, with … for what is filled in."""
        arguments = self.node.args[position : position + 1]
        found = [text for node in arguments for text in _templates(node, self.scope)]
        found = [re.sub(f"{_GAP}+", _GAP, text) for text in found]
        return [text for text in found if len(re.sub(r"[^a-zA-Z]", "", text)) >= 8]

    @property
    def name(self) -> str:
        """The name of the function that is called."""
        function = self.node.func
        return getattr(function, "attr", getattr(function, "id", ""))


def errors_page() -> str:
    """Return the page."""
    calls = [
        call for root in SOURCES for path in sorted(root.rglob("*.py")) for call in _calls(path)
    ]
    classes = error_classes()
    lines = ["# Errors", "", "Each message says what happened and what to do. Search for a part"]
    lines += [f"of yours; {_GAP} stands for names and numbers.", ""]
    lines += ["## Exceptions in Python", "", "In `onsight.errors`, unless noted.", ""]
    lines += ["| class | exit code | meaning |", "| --- | --- | --- |"]
    for name, kind in classes.items():
        (about, *_), code = (kind.__doc__ or "").split("\n"), getattr(kind, "exit_code", "")
        code = "129, 130 or 143" if kind is onsight.errors.Interrupted else code
        module, _, short = name.rpartition(".")
        place = "" if module == "onsight.errors" else f" (`{module}`)"
        lines += [f"| `{short}` | {code} | {escape(about)}{place} |"]
    lines += ["", "## Messages", ""]
    for area, found in messages(calls).items():
        lines += [f"### {area}", "", *_items(found)]
    return "\n".join([*lines, *_problem_lines(calls), *_check_lines(), *_doctor_lines(calls)])


def error_classes() -> dict[str, type[BaseException]]:
    """Return the exception classes that users meet, by their full names."""
    return {
        f"{module.__name__}.{name}": kind
        for module in _MODULES
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__
    }


def messages(calls: list[Call]) -> Mapping[str, list[str]]:
    """Return the templates of all messages by their area."""
    names = _error_names()
    found: dict[str, list[str]] = {area: [] for area in _AREAS}
    for call in calls:
        if call.name in names - {"ImageError"} or call.name in ("_fail", "fail"):
            found[_area(call.file)] += call.text(0)
    return {area: texts for area, texts in found.items() if texts}


def _problem_lines(calls: list[Call]) -> list[str]:
    """Describe the rows of problems.csv."""
    reasons = [text for call in calls if call.name == "ImageError" for text in call.text(0)]
    reasons += [text for call in calls if call.name == "Problem" for text in call.text(2)]
    lines = ["## Reasons in problems.csv", "", "Each image that is not used is a row with its"]
    lines += ["`path`, the `stage` at which it was left out, and one of these reasons:", ""]
    return [*lines, *_items(reasons)]


def _check_lines() -> list[str]:
    """Describe the findings of `onsight check`, by kind."""
    lines = ["## Findings of check", "", "| `kind` in check.csv | what it is | `--fail-on` |"]
    lines += ["| --- | --- | --- |"]
    for kind, heading in KINDS.items():
        groups = ", ".join(f"`{group}`" for group, kinds in GROUPS.items() if kind in kinds)
        lines += [f"| `{kind}` | {heading} | {groups} |"]
    return [*lines, ""]


def _doctor_lines(calls: list[Call]) -> list[str]:
    """Describe the checks of `onsight doctor`, and its warnings."""
    lines = ["## Checks of doctor", "", "| check | what it does |", "| --- | --- |"]
    for name, check in CHECKS.items():
        lines += [f"| {name} | {escape((check.__doc__ or '').split('; None')[0].rstrip('.'))} |"]
    warnings = [
        text
        for call in calls
        if call.name == "CheckResult" and {"warning", "problem"} & {*_constants(call.node.args[0])}
        for text in call.text(1)
    ]
    return [*lines, "", "Its warnings and problems:", "", *_items(warnings)]


def _items(texts: Iterable[str]) -> list[str]:
    return [*(f"- {escape(text)}" for text in sorted({*texts}, key=str.lower)), ""]


def _error_names() -> set[str]:
    """Return the names of all error classes, those defined elsewhere included."""
    names = {name.rpartition(".")[2] for name in error_classes()} | _BASES
    for root in SOURCES:
        for path in root.rglob("*.py"):
            for node in ast.walk(_parse(path)):
                if isinstance(node, ast.ClassDef):
                    bases = {getattr(base, "id", "") for base in node.bases}
                    names |= {node.name} if bases & names else set()
    return names


def _calls(path: Path) -> Iterator[Call]:
    """Yield every call in a file with the innermost function around it."""

    def walk(node: ast.AST, scope: ast.AST) -> Iterator[Call]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                yield Call(path, child, scope)
            inner = child if isinstance(child, ast.FunctionDef) else scope
            yield from walk(child, inner)

    tree = _parse(path)
    yield from walk(tree, tree)


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _area(path: Path) -> str:
    package, *inner = path.relative_to(next(r for r in SOURCES if path.is_relative_to(r))).parts
    part = inner[0].removesuffix(".py") if package == "onsight" else package
    return next(
        (area for area, parts in _AREAS.items() if part in parts.split()), next(iter(_AREAS))
    )


def _constants(node: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is str]


def _templates(node: ast.expr, scope: ast.AST) -> list[str]:
    """Return the texts that an expression can have; … stands for parts that are not literal."""
    if isinstance(node, ast.Constant):
        return [" ".join(node.value.split())] if isinstance(node.value, str) else [_GAP]
    if isinstance(node, ast.JoinedStr):
        parts = [n.value if isinstance(n, ast.Constant) else _GAP for n in node.values]
        return [" ".join("".join(map(str, parts)).split())]
    if isinstance(node, ast.IfExp):
        return [*_templates(node.body, scope), *_templates(node.orelse, scope)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        right = _templates(node.right, scope)
        return [f"{start}{end}" for start in _templates(node.left, scope) for end in right]
    if isinstance(node, ast.Name):
        assigned = [
            statement.value
            for statement in ast.walk(scope)
            if isinstance(statement, ast.Assign)
            and node.id in [getattr(target, "id", "") for target in statement.targets]
        ]
        return [t for v in assigned if not isinstance(v, ast.Name) for t in _templates(v, scope)]
    return [_GAP]
