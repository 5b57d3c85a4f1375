"""Rule on the best weights, kept by a state_dict that training goes on to change."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.loops import is_training
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import FUNCTIONS, LOOPS, key_of, last_name, names_in, own_nodes

_TRAINS = re.compile(r"^_?(train|fit)|run_epoch")


def _check(context: Context) -> Iterator[Mistake]:
    """`best = model.state_dict()` in a loop that trains, used later."""
    for call in context.values.calls("state_dict"):
        assignment = context.script.parent(call)
        if not isinstance(assignment, ast.Assign) or not isinstance(call.func, ast.Attribute):
            continue
        names = {key_of(call.func.value)}
        if isinstance(assignment.targets[0], ast.Subscript):
            names.add(key_of(assignment.targets[0]))
        loop = _training_loop(context, call, names)
        kept = context.script.code(assignment.targets[0])
        if loop is not None and _is_used_later(context, assignment, loop):
            code = context.script.code(call)
            change = replace_node(context.script, call, f"copy.deepcopy({code})")
            fixed = show_changed(context.script, call, [change])
            problem = f"{kept} is not a copy: it changes with every further step of training"
            yield Mistake(call, problem, fixed)


RULE = Rule(
    id="weights-not-copied",
    title="The best weights are not copied",
    why=(
        "state_dict() returns the weights themselves. Whatever is loaded or saved from it later "
        "are the last weights, not those of the best epoch."
    ),
    check=_check,
    pattern=r"=\s*[\w.]+\.state_dict\(\)",
)


def _training_loop(context: Context, call: ast.Call, names: set[str]) -> ast.AST | None:
    """The innermost loop around a call that trains, unless it creates what has these names."""
    for loop in context.script.ancestors(call):
        if isinstance(loop, FUNCTIONS):
            return None
        if not isinstance(loop, LOOPS):
            continue
        nodes = own_nodes(loop)
        called = (last_name(node.func) for node in nodes if isinstance(node, ast.Call))
        if is_training(context, loop) or any(map(_TRAINS.search, called)):
            targets = [t for node in nodes if isinstance(node, ast.Assign) for t in node.targets]
            return None if names & set(map(key_of, targets)) else loop
    return None


def _is_used_later(context: Context, assignment: ast.Assign, loop: ast.AST) -> bool:
    """Return whether what was kept is passed on or returned outside the loop or the branch."""
    name = key_of(assignment.targets[0])
    branch = context.script.parent(assignment)
    inside = set(own_nodes(branch if isinstance(branch, ast.If) else loop))
    for node in own_nodes(context.script.function(loop)):
        if isinstance(node, (ast.Call, ast.Return)) and node not in inside:
            values = node.args if isinstance(node, ast.Call) else [node.value]
            is_use = isinstance(node, ast.Return) or last_name(node.func) in _USES
            if is_use and any(value is not None and name in names_in(value) for value in values):
                return True
    return False


_USES = ("load_state_dict", "save")
