"""Rule on training that continues in evaluation mode after the first evaluation."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import above, inserted_above
from onsight_lint.layers import changes_by_mode
from onsight_lint.loops import BatchLoop, phase_test
from onsight_lint.modes import Event
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import FUNCTIONS, start_place
from onsight_lint.vocabulary import LOOPS

_AVERAGE = re.compile(r"(^|[_.])(ema|swa|avg|teacher)|averag", re.IGNORECASE)
_WHY = (
    "The evaluation leaves the network in evaluation mode: from the second epoch on, dropout is "
    "off and batch norm no longer updates its statistics."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Training loops in a loop over epochs that calls `.eval()` and never `.train()`."""
    modes = context.modes
    for loop in context.step_loops:
        runs = [call for call, helper in loop.runs if helper is None]
        if not loop.trains or not runs or phase_test(loop) is not None:
            continue
        network = runs[0].func
        for place in _places(context, loop):
            epochs = _enclosing_loop(context, place)
            if epochs is None or modes.sets(epochs, "train"):
                continue
            left = [
                event
                for event in modes.sets(epochs, "eval")
                if _leaves_eval(context, event, loop, network)
            ]
            if left and changes_by_mode(context, network):
                yield _mistake(context, loop, network, left[0])
                break


RULE = Rule(
    "missing-train", "Training in evaluation mode after the first epoch", _WHY, _check, LOOPS
)


def _mistake(context: Context, loop: BatchLoop, network: ast.expr, event: Event) -> Mistake:
    words = context.script.code(network)
    statement = context.script.source(loop.node).statement(loop.node)
    text = above(context.script, statement, f"{words}.train()")
    line = start_place(event.call)[0]
    problem = f"{words} is never set back to training mode after the evaluation at line {line}"
    mend = inserted_above(context.script, statement, f"{words}.train()")
    return Mistake(statement, problem, text, mend=mend)


def _places(context: Context, loop: BatchLoop) -> list[ast.AST]:
    """A training loop, or the calls of the function that contains it."""
    function = context.script.function(loop.node)
    if _enclosing_plain_loop(context, loop.node) is not None or not isinstance(function, FUNCTIONS):
        return [loop.node]
    return list(context.values.call_sites(function))


def _enclosing_plain_loop(context: Context, node: ast.AST) -> ast.AST | None:
    for parent in context.script.source(node).ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return None
        if isinstance(parent, (ast.For, ast.While)):
            return parent
    return None


def _enclosing_loop(context: Context, node: ast.AST) -> ast.AST | None:
    """The loop over epochs around a training loop or its call."""
    loop = _enclosing_plain_loop(context, node)
    return None if any(loop is one.node for one in context.step_loops) else loop


def _leaves_eval(context: Context, event: Event, loop: BatchLoop, network: ast.expr) -> bool:
    """Whether an event in the loop over epochs belongs to an evaluation of the same network."""
    name = last_name(network)
    if event.function is not None:
        inside = context.modes.left(event.function) == "eval"
        return inside and _evaluates(context, event)
    owner = event.call.func.value if isinstance(event.call.func, ast.Attribute) else event.call
    if last_name(owner) != name:
        return False
    scope, begin = context.script.function(event.call), start_place(event.call)
    later = [
        other
        for other in context.step_loops
        if context.script.function(other.node) is scope and start_place(other.node) > begin
    ]
    first = min(later, key=lambda one: start_place(one.node), default=None)
    return first is not None and first.evaluates and first is not loop


def _evaluates(context: Context, event: Event) -> bool:
    """Whether a called function evaluates the network, and not perhaps its moving average."""
    function = event.function
    runs = [
        call
        for one in context.step_loops
        if one.evaluates and context.script.function(one.node) is function
        for call, _ in one.runs
    ]
    if not runs or function is None:
        return False
    value = context.values.argument(event.call, function, last_name(runs[0].func))
    ways = [value] if value is not None else []
    if isinstance(value, ast.Name):
        bindings = context.script.scope(value).reaching(value)
        ways += [one.value for one in bindings if one.value is not None]
    return not any(_AVERAGE.search(context.script.code(one)) for one in ways)
