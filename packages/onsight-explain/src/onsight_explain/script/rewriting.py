"""Runs statements of a script's training loop that only read values every so many steps."""

import ast

EVERY_STEPS = 50
_GATE = "__onsight_is_due_"
_UPDATES = {"backward", "step", "zero_grad"}


def gate_reads(tree: ast.Module, lines: tuple[int, ...]) -> dict[str, object]:
    """Gate the statements that hold these lines; returns the names that the script then needs."""
    gates = _Gates(tree, lines)
    gates.visit(tree)
    ast.fix_missing_locations(tree)
    return {gates.name: Gate(gates.count)}


def gated_statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """The statement of a training loop that holds this line and can run rarely, if there is one."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.While) and _trains(loop):
            for statement in _flat(loop.body):
                if _holds(statement, line) and not _updates(statement):
                    return None if _is_needed(statement, loop) else statement
    return None


class Gate:
    """True at the first call for a statement, and then at every 50th."""

    def __init__(self, statements: int) -> None:
        self.calls = [0] * statements

    def __call__(self, statement: int) -> bool:
        """Whether the statement with this number runs now."""
        self.calls[statement] += 1
        return self.calls[statement] % EVERY_STEPS == 1


class _Gates(ast.NodeTransformer):
    def __init__(self, tree: ast.Module, lines: tuple[int, ...]) -> None:
        found = (gated_statement(tree, line) for line in lines)
        self.statements = {id(one) for one in found if one is not None}
        self.name = f"{_GATE}{'_'.join(map(str, lines))}"  # several what-ifs may gate statements
        self.count = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if id(node) not in self.statements:
            return self.generic_visit(node)
        call = ast.parse(f"{self.name}({self.count})", mode="eval").body
        self.count += 1
        assert isinstance(node, ast.stmt)
        return ast.copy_location(ast.If(test=call, body=[node], orelse=[]), node)


def _trains(loop: ast.For | ast.While) -> bool:
    """Whether the loop itself updates, and not only a loop inside it."""
    return any(
        _updates(one) and not isinstance(one, ast.For | ast.While) for one in _flat(loop.body)
    )


def _flat(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a loop, and those inside its `with` and `if` blocks that update."""
    found = []
    for statement in body:
        if isinstance(statement, ast.With | ast.If | ast.Try) and _updates(statement):
            found += _flat(statement.body)
        else:
            found.append(statement)
    return found


def _updates(node: ast.AST) -> bool:
    """Whether an optimizer's step or a part of an update is called inside."""
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in _UPDATES
        for one in ast.walk(node)
    )


def _holds(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _is_needed(statement: ast.stmt, loop: ast.For | ast.While) -> bool:
    """Whether the statement leaves the loop, or assigns a name that an update needs."""
    leaves = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield)
    if any(isinstance(one, leaves) for one in ast.walk(statement)):
        return True
    made = _names(statement, ast.Store)
    for other in _flat(loop.body):
        if other is not statement and _updates(other) and made & _names(other, ast.Load):
            return True
    return False


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, context)}
