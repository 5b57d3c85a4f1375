"""Rule on training that continues in evaluation mode after the first evaluation."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import insert_line_above, show_with_line_above
from onsight_lint.loops import BatchLoop, phase_test
from onsight_lint.modes import ModeCall, depends_on_mode
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import FUNCTIONS, call_owner, called_object, last_name, start_position

_AVERAGE_NAME = re.compile(r"(^|[_.])(ema|swa|avg|teacher)|averag", re.IGNORECASE)


def _check(context: Context) -> Iterator[Mistake]:
    """Training loops in a loop over epochs that calls `.eval()` and never `.train()`."""
    modes = context.modes
    for loop in context.batch_loops:
        calls = [call for call, helper in loop.network_calls if helper is None]
        if not loop.trains or not calls or phase_test(loop) is not None:
            continue
        network = called_object(calls[0])
        for place in _places(context, loop):
            epochs = next(context.script.loops_around(place), None)
            if epochs is None or any(epochs is other.node for other in context.batch_loops):
                continue
            if modes.calls_setting("train", epochs):
                continue
            leaving = [
                event
                for event in modes.calls_setting("eval", epochs)
                if _leaves_in_evaluation(context, event, loop, network)
            ]
            if leaving and depends_on_mode(context, network):
                yield _mistake(context, loop, network, leaving[0])
                break


RULE = Rule(
    id="missing-train",
    title="Training in evaluation mode after the first epoch",
    why=(
        "The evaluation leaves the network in evaluation mode: from the second epoch on, dropout "
        "is off and batch norm no longer updates its statistics."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _mistake(context: Context, loop: BatchLoop, network: ast.expr, event: ModeCall) -> Mistake:
    name = context.script.code(network)
    statement = context.script.statement(loop.node)
    line = start_position(event.call)[0]
    problem = f"{name} is never set back to training mode after the evaluation at line {line}"
    fixed = show_with_line_above(context.script, statement, f"{name}.train()")
    changes = insert_line_above(context.script, statement, f"{name}.train()")
    return Mistake(statement, problem, fixed, changes=changes)


def _places(context: Context, loop: BatchLoop) -> list[ast.AST]:
    """A training loop, or the calls of the function that contains it."""
    function = context.script.function(loop.node)
    if any(context.script.loops_around(loop.node)) or not isinstance(function, FUNCTIONS):
        return [loop.node]
    return list(context.values.call_sites(function))


def _leaves_in_evaluation(
    context: Context, event: ModeCall, loop: BatchLoop, network: ast.expr
) -> bool:
    """Return whether a call in the loop over epochs is part of evaluating the same network."""
    if event.function is not None:
        is_left = context.modes.left_by(event.function) == "eval"
        return is_left and _evaluates_network(context, event)
    owner = call_owner(event.call) or event.call
    if last_name(owner) != last_name(network):
        return False
    scope, begin = context.script.function(event.call), start_position(event.call)
    later = [
        other
        for other in context.batch_loops
        if context.script.function(other.node) is scope and start_position(other.node) > begin
    ]
    first = min(later, key=lambda other: start_position(other.node), default=None)
    return first is not None and first.evaluates and first is not loop


def _evaluates_network(context: Context, event: ModeCall) -> bool:
    """Return whether a called function evaluates the network itself, not its moving average."""
    function = event.function
    calls = [
        call
        for loop in context.batch_loops
        if loop.evaluates and context.script.function(loop.node) is function
        for call, _ in loop.network_calls
    ]
    if not calls or function is None:
        return False
    network = last_name(called_object(calls[0]))
    value = context.values.argument(event.call, function, network)
    sources = [value] if value is not None else []
    if isinstance(value, ast.Name):
        bindings = context.script.scope(value).reaching(value)
        sources += [binding.value for binding in bindings if binding.value is not None]
    return not any(_AVERAGE_NAME.search(context.script.code(source)) for source in sources)
