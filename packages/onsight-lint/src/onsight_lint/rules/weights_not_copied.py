"""Rule on the best weights, kept by a state_dict that training goes on to change."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import show_replaced
from onsight_lint.loops import is_training
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import call_owner, key_of, keys_in, last_name, own_nodes

_MAX_CALLS = 50  # of state_dict that are considered, each with all code around it
_TRAINS = re.compile(r"^_?(train|fit)|run_epoch")
_HOLDS_NUMBERS = re.compile("sched|scaler")  # whose state is copied anyway
_PASSES_ON = ("load_state_dict", "save")


def _check(context: Context) -> Iterator[Mistake]:
    """`best = model.state_dict()` in a loop that trains, loaded or saved later."""
    for call in context.values.calls("state_dict")[:_MAX_CALLS]:
        assignment = context.script.parent(call)
        if isinstance(assignment, ast.Assign) and _changes_before_use(context, call, assignment):
            code = context.script.code
            kept = code(assignment.targets[0])
            problem = f"{kept} is not a copy: all further training changes it"
            fixed = show_replaced(context.script, call, f"copy.deepcopy({code(call)})")
            yield Mistake(call, problem, fixed)


RULE = Rule(
    id="weights-not-copied",
    title="The best weights are not copied",
    why=(
        "state_dict() returns references to the weights, which training goes on to change. Loading "
        "or saving it later gives the last weights, not those of the best epoch."
    ),
    check=_check,
    pattern=r"=\s*[\w.]+\.state_dict\(\)",
)


def _changes_before_use(context: Context, call: ast.Call, assignment: ast.Assign) -> bool:
    """Return whether weights are kept in a loop that trains them, and used outside of it.

    A use in the loop counts if it is outside the branch in which the weights are kept.
    """
    loop = _training_loop(context, call)
    network, kept = call_owner(call), key_of(assignment.targets[0])
    if loop is None or network is None or _HOLDS_NUMBERS.search(last_name(network)):
        return False
    stored = [node for node in own_nodes(loop) if isinstance(getattr(node, "ctx", None), ast.Store)]
    created = {key_of(node) for node in stored if not isinstance(node, ast.Subscript)}
    is_item = isinstance(assignment.targets[0], ast.Subscript)
    if key_of(network) in created or (is_item and kept in created):
        return False
    branch = context.script.parent(assignment)
    inside = set(own_nodes(branch if isinstance(branch, ast.If) else loop))
    return any(
        node not in inside and kept in keys_in(node) and _is_read_in(context, assignment, node)
        for node in own_nodes(context.script.function(loop))
        if isinstance(node, ast.Return)
        or (isinstance(node, ast.Call) and last_name(node.func) in _PASSES_ON)
    )


def _is_read_in(context: Context, assignment: ast.Assign, node: ast.AST) -> bool:
    """Return whether code may read the value of an assignment, not that of a later one."""
    kept = assignment.targets[0]
    return not isinstance(kept, ast.Name) or any(
        binding.node is assignment
        for name in own_nodes(node)
        if isinstance(name, ast.Name) and name.id == kept.id
        for binding in context.script.scope(name).reaching(name)
    )


def _training_loop(context: Context, call: ast.Call) -> ast.AST | None:
    """The innermost loop around a call that trains."""
    for loop in context.script.loops_around(call):
        calls = (node for node in own_nodes(loop) if isinstance(node, ast.Call))
        if is_training(context, loop) or any(_TRAINS.search(last_name(node)) for node in calls):
            return loop
    return None
