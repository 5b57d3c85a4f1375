"""Rule on loader workers started by a script without `if __name__ == "__main__":`."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import show_wrapped
from onsight_lint.kinds import Kind
from onsight_lint.loops import called_functions, unwrap_loader
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import is_main_guard, last_name, own_nodes, start_position


def _check(context: Context) -> Iterator[Mistake]:
    """The first statement of the script itself that starts workers outside the guard."""
    if _forks_workers(context):
        return
    for statement in context.script.sources[0].tree.body:
        if is_main_guard(statement) or isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        loader = _loader_with_workers(context, statement)
        if loader is not None:
            guard = 'if __name__ == "__main__":'
            problem = f"the workers of {context.script.code(loader)} start outside a main guard"
            yield Mistake(statement, problem, show_wrapped(context.script, statement, guard))
            return


RULE = Rule(
    id="main-guard",
    title="Loader workers without a main guard",
    why=(
        "Where worker processes are not forked (Windows, macOS, Python 3.14 and later), each of "
        "them imports the script and so runs it again, which fails."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _loader_with_workers(context: Context, statement: ast.stmt) -> ast.expr | None:
    """The first loader whose workers a statement starts."""
    inside = {statement, *own_nodes(statement)}
    called = called_functions(context, statement)
    loaders = [
        loop.loader
        for loop in context.loader_loops
        if loop.node in inside or context.script.function(loop.node) in called
    ]
    for node in inside:
        if isinstance(node, ast.Call) and last_name(node.func) == "next" and node.args:
            loaders.append(unwrap_loader(node.args[0]))
    with_workers = [loader for loader in loaders if _has_workers(context, loader)]
    return min(with_workers, key=start_position, default=None)


def _has_workers(context: Context, loader: ast.expr) -> bool:
    if context.kinds.kind(loader) is not Kind.LOADER:
        return False
    for call in context.loaders.creations(loader):
        workers = context.loaders.setting(call, "num_workers")
        number = context.constants.value_or_default(workers) if workers is not None else 0
        if isinstance(number, int) and number > 0:
            return True
    return False


def _forks_workers(context: Context) -> bool:
    """Return whether a script requests forked workers, which do not need the guard."""
    calls = [*context.values.calls("set_start_method"), *context.values.calls("get_context")]
    values = (value for call in calls for value in call.args)
    return any(isinstance(value, ast.Constant) and value.value == "fork" for value in values)
