"""Rule on loader workers started by a script without `if __name__ == "__main__":`."""

import ast
from collections.abc import Iterator, Sequence

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import found, within
from onsight.explain.reading.loops import BatchLoop, peeled, reached
from onsight.explain.reading.modes import is_main
from onsight.explain.reading.source import own_nodes, start_place
from onsight.explain.reading.vocabulary import Kind

_WHY = (
    "Where worker processes are not forked (Windows, macOS, Python 3.14 on) each one imports the "
    "script and starts it anew, which fails."
)


def main_guards(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """The first statement of the script itself that starts workers unguarded."""
    if _forks(facts):
        return
    script = facts.script.sources[0]
    by_function = {
        function: [loop for loop in loops if facts.script.function(loop.node) is function]
        for function in {facts.script.function(loop.node) for loop in loops}
    }
    for statement in script.tree.body:
        if is_main(statement) or isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            continue
        line = _starts_workers(facts, statement, by_function, loops)
        if line:
            text = within(facts.script, statement, 'if __name__ == "__main__":')
            problem = f"the workers of {line} are started outside the main guard"
            yield found(facts.script, statement, "main-guard", problem, _WHY, text)
            return


def _starts_workers(
    facts: Facts,
    statement: ast.stmt,
    by_function: dict[ast.AST, list[BatchLoop]],
    loops: Sequence[BatchLoop],
) -> str:
    """The loader whose workers a statement starts; empty if it starts none."""
    inside = {statement, *own_nodes(statement)}
    here = [loop for loop in loops if loop.node in inside]
    for function in reached(facts, statement):
        here.extend(by_function.get(function, []))
    loaders = [loop.loader for loop in here]
    for node in inside:
        if isinstance(node, ast.Call) and last_name(node.func) == "next" and node.args:
            loaders.append(peeled(node.args[0]))
    working = [loader for loader in loaders if _has_workers(facts, loader)]
    first = min(working, key=start_place, default=None)
    return "" if first is None else facts.script.words(first)


def _has_workers(facts: Facts, loader: ast.expr) -> bool:
    if facts.kinds.kind(loader) is not Kind.LOADER:
        return False
    for call in facts.loaders.made(loader):
        workers = facts.loaders.setting(call, "num_workers")
        number = facts.constants.usual(workers) if workers is not None else 0
        if isinstance(number, int) and number > 0:
            return True
    return False


def _forks(facts: Facts) -> bool:
    """Whether a script asks for forked workers, so that the guard is not needed."""
    for name in ("set_start_method", "get_context"):
        for call in facts.values.calls(name):
            if any(isinstance(one, ast.Constant) and one.value == "fork" for one in call.args):
                return True
    return False
