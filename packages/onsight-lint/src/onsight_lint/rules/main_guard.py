"""Rule on loader workers started by a script without `if __name__ == "__main__":`."""

import ast
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import within
from onsight_lint.loops import BatchLoop, reached, unwrapped
from onsight_lint.reachable import is_main
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import own_nodes, start_place
from onsight_lint.vocabulary import LOOPS, Kind

_WHY = (
    "Where worker processes are not forked (Windows, macOS, Python 3.14 and later), each of them "
    "imports the script and so runs it again, which fails."
)


def _check(context: Context) -> Iterator[Mistake]:
    """The first statement of the script itself that starts workers outside the guard."""
    if _forks(context):
        return
    script, loops = context.script.sources[0], context.batch_loops
    by_function = {
        function: [loop for loop in loops if context.script.function(loop.node) is function]
        for function in {context.script.function(loop.node) for loop in loops}
    }
    for statement in script.tree.body:
        if is_main(statement) or isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        line = _starts_workers(context, statement, by_function)
        if line:
            text = within(context.script, statement, 'if __name__ == "__main__":')
            problem = f"the workers of {line} are started outside the main guard"
            yield Mistake(statement, problem, text)
            return


RULE = Rule("main-guard", "Loader workers without a main guard", _WHY, _check, LOOPS)


def _starts_workers(
    context: Context,
    statement: ast.stmt,
    by_function: dict[ast.AST, list[BatchLoop]],
) -> str:
    """The code of the loader whose workers a statement starts; empty if it starts none."""
    inside = {statement, *own_nodes(statement)}
    here = [loop for loop in context.batch_loops if loop.node in inside]
    for function in reached(context, statement):
        here.extend(by_function.get(function, []))
    loaders = [loop.loader for loop in here]
    for node in inside:
        if isinstance(node, ast.Call) and last_name(node.func) == "next" and node.args:
            loaders.append(unwrapped(node.args[0]))
    working = [loader for loader in loaders if _has_workers(context, loader)]
    first = min(working, key=start_place, default=None)
    return "" if first is None else context.script.code(first)


def _has_workers(context: Context, loader: ast.expr) -> bool:
    if context.kinds.kind(loader) is not Kind.LOADER:
        return False
    for call in context.loaders.made(loader):
        workers = context.loaders.setting(call, "num_workers")
        number = context.constants.fixed_or_default(workers) if workers is not None else 0
        if isinstance(number, int) and number > 0:
            return True
    return False


def _forks(context: Context) -> bool:
    """Whether a script requests forked workers, which do not need the guard."""
    for name in ("set_start_method", "get_context"):
        for call in context.values.calls(name):
            if any(isinstance(one, ast.Constant) and one.value == "fork" for one in call.args):
                return True
    return False
