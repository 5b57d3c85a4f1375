"""Reads a script's source, and lets statements that only read values run only every nth step."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onsight_explain.errors import ExplainError
from onsight_lint.errors import LintError
from onsight_lint.files import decode, read_content
from onsight_lint.read import read_script
from onsight_lint.rule import Finding
from onsight_lint.source import parse

EVERY_STEPS = 50
_GATE = "__onsight_is_due_"
_UPDATES = {"backward", "step", "zero_grad"}


def check_is_file(script: Path) -> None:
    """Raise ExplainError unless the script is a file."""
    if script.is_dir():
        raise ExplainError(f"{script} is a folder: name the script in it that trains")
    if not script.is_file():
        what = "is not a regular file" if script.exists() else "does not exist"
        raise ExplainError(f"{script} {what}")


def check_still_exists(script: Path) -> None:
    """Raise ExplainError if a run of the script has deleted it, so that it cannot run again."""
    if not script.is_file():
        raise ExplainError(
            f"{script} deleted or moved itself, so it cannot be run again with changes: restore it "
            "and remove the command that does this"
        )


def parse_script(script: Path) -> ast.Module:
    """Return the syntax tree of a script. Raises ExplainError if it cannot be parsed."""
    with _as_explain_errors():
        return parse(script, decode(script, read_content(script)))


def find_mistakes(script: Path) -> list[Finding]:
    """Return the mistakes that reading a script reveals. Raises ExplainError."""
    with _as_explain_errors():
        return read_script(script)


def gate_reads(tree: ast.Module, lines: tuple[int, ...]) -> dict[str, object]:
    """Gate the statements at these lines; return the names that the script then needs."""
    gates = _GateStatements(tree, lines)
    gates.visit(tree)
    ast.fix_missing_locations(tree)
    return {gates.name: StepGate(gates.count)}


def gated_statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """Return the statement of a training loop at this line if it may run rarely, else None."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While) and _trains(loop):
            for statement in _flat(loop.body):
                is_here = statement.lineno <= line <= (statement.end_lineno or statement.lineno)
                if is_here and not _updates(statement):
                    return None if _is_needed(statement, loop) else statement
    return None


class StepGate:
    """True at the first call for a statement, and then at every 50th."""

    def __init__(self, statements: int) -> None:
        self.calls = [0] * statements

    def __call__(self, statement: int) -> bool:
        """Return whether the statement with this number runs now."""
        self.calls[statement] += 1
        return self.calls[statement] % EVERY_STEPS == 1


class _GateStatements(ast.NodeTransformer):
    def __init__(self, tree: ast.Module, lines: tuple[int, ...]) -> None:
        statements = (gated_statement(tree, line) for line in lines)
        self.statements = {id(statement) for statement in statements if statement is not None}
        self.name = f"{_GATE}{'_'.join(map(str, lines))}"  # several what-ifs may gate statements
        self.count = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if id(node) not in self.statements:
            return self.generic_visit(node)
        call = ast.parse(f"{self.name}({self.count})", mode="eval").body
        self.count += 1
        assert isinstance(node, ast.stmt)
        return ast.copy_location(ast.If(test=call, body=[node], orelse=[]), node)


@contextmanager
def _as_explain_errors() -> Iterator[None]:
    try:
        yield
    except LintError as error:
        raise ExplainError(str(error)) from error


def _trains(loop: ast.For | ast.While) -> bool:
    """Return whether the loop itself updates, and not only a loop inside it."""
    return any(
        _updates(statement) and not isinstance(statement, ast.For | ast.While)
        for statement in _flat(loop.body)
    )


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return the statements of a loop, and those in its `with`, `if` and `try` that update."""
    statements = []
    for statement in body:
        if isinstance(statement, ast.With | ast.If | ast.Try) and _updates(statement):
            statements += _flat(statement.body)
        else:
            statements.append(statement)
    return statements


def _updates(node: ast.AST) -> bool:
    """Return whether an optimizer's step or a part of an update is called inside."""
    return any(
        isinstance(inner, ast.Call)
        and isinstance(inner.func, ast.Attribute)
        and inner.func.attr in _UPDATES
        for inner in ast.walk(node)
    )


def _is_needed(statement: ast.stmt, loop: ast.For | ast.While) -> bool:
    """Return whether the statement leaves the loop, or assigns a name that an update needs."""
    leaves = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield)
    if any(isinstance(node, leaves) for node in ast.walk(statement)):
        return True
    assigned = _names(statement, ast.Store)
    for other in _flat(loop.body):
        if other is not statement and _updates(other) and assigned & _names(other, ast.Load):
            return True
    return False


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, context)}
