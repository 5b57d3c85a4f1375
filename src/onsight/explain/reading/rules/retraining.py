"""Rule on training that goes on in evaluation mode after the first evaluation."""

import ast
from collections.abc import Iterator, Sequence

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import above, found
from onsight.explain.reading.layers import changes_by_mode
from onsight.explain.reading.loops import BatchLoop, phase_test
from onsight.explain.reading.modes import Event, Modes
from onsight.explain.reading.source import FUNCTIONS, start_place

_WHY = (
    "The evaluation leaves the network in evaluation mode: from the second epoch on dropout is off "
    "and batch norm no longer learns its statistics."
)


def missing_train(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """Training that goes on in evaluation mode after the first evaluation."""
    modes = Modes(facts)
    for loop in loops:
        runs = [call for call, helper in loop.runs if helper is None]
        if not loop.trains or not runs or phase_test(loop) is not None:
            continue
        network = runs[0].func
        for place in _places(facts, loop):
            epochs = _enclosing_loop(facts, place, loops)
            if epochs is None or modes.sets(epochs, "train"):
                continue
            left = [
                event
                for event in modes.sets(epochs, "eval")
                if _leaves_eval(facts, modes, loops, event, loop, network)
            ]
            if left and changes_by_mode(facts, network):
                yield _train_finding(facts, loop, network, left[0])
                break


def _train_finding(facts: Facts, loop: BatchLoop, network: ast.expr, event: Event) -> Finding:
    words = facts.script.words(network)
    statement = facts.script.source(loop.node).statement(loop.node)
    text = above(facts.script, statement, f"{words}.train()")
    line = start_place(event.call)[0]
    problem = f"{words} is never put back into training mode after the evaluation at line {line}"
    return found(facts.script, statement, "missing-train", problem, _WHY, text)


def _places(facts: Facts, loop: BatchLoop) -> list[ast.AST]:
    """A training loop, or the calls of the function that holds it."""
    function = facts.script.function(loop.node)
    if _enclosing_plain_loop(facts, loop.node) is not None or not isinstance(function, FUNCTIONS):
        return [loop.node]
    return list(facts.values.call_sites(function))


def _enclosing_plain_loop(facts: Facts, node: ast.AST) -> ast.AST | None:
    for parent in facts.script.source(node).ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return None
        if isinstance(parent, (ast.For, ast.While)):
            return parent
    return None


def _enclosing_loop(facts: Facts, node: ast.AST, loops: Sequence[BatchLoop]) -> ast.AST | None:
    """The loop over epochs around a training loop or its call."""
    loop = _enclosing_plain_loop(facts, node)
    return None if any(loop is one.node for one in loops) else loop


def _leaves_eval(
    facts: Facts,
    modes: Modes,
    loops: Sequence[BatchLoop],
    event: Event,
    loop: BatchLoop,
    network: ast.expr,
) -> bool:
    """Whether an event in the loop over epochs belongs to an evaluation of the same network."""
    name = last_name(network)
    if event.function is not None:
        return modes.left(event.function) == "eval" and _evaluates(facts, loops, event.function)
    owner = event.call.func.value if isinstance(event.call.func, ast.Attribute) else event.call
    if last_name(owner) != name:
        return False
    scope, begin = facts.script.function(event.call), start_place(event.call)
    behind = [
        other
        for other in loops
        if facts.script.function(other.node) is scope and start_place(other.node) > begin
    ]
    first = min(behind, key=lambda one: start_place(one.node), default=None)
    return first is not None and first.evaluates and first is not loop


def _evaluates(facts: Facts, loops: Sequence[BatchLoop], function: ast.AST) -> bool:
    return any(one.evaluates and facts.script.function(one.node) is function for one in loops)
