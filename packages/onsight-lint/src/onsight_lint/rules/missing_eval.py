"""Rule on evaluation of a network that is in training mode."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import insert_line_above, show_with_line_above
from onsight_lint.loops import BatchLoop, NetworkCall, evaluating_calls, network_code, phase_test
from onsight_lint.modes import Mode, depends_on_mode
from onsight_lint.rule import TRAINING_CODE, Context, Mistake, Rule
from onsight_lint.syntax import (
    COMPREHENSIONS,
    FUNCTIONS,
    called_object,
    keys_in,
    last_name,
    names_in,
    own_nodes,
    start_position,
)

_BATCH_NORM_UPDATE = re.compile(r"(^|_)bn(_|$)|batch_?norm|calib|(^|_)stats$", re.IGNORECASE)


def _check(context: Context) -> Iterator[Mistake]:
    """Evaluation of a network that is still in training mode."""
    sets_mode = any(map(context.values.calls, ("eval", "train")))
    for loop in context.batch_loops:
        if loop.evaluates and (network_call := _call_in_training_mode(context, loop)):
            network = network_code(context, network_call)
            problem = f"{network} is evaluated in training mode: {network}.eval() is missing"
            is_certain = _is_set_back(context)
            if not is_certain:  # later training would be in evaluation mode
                problem += f", and {network}.train() before the training"
            yield _mistake(context, loop, problem, f"{network}.eval()", is_certain)
            continue
        test = phase_test(loop) if loop.network_calls and not sets_mode else None
        if test is not None and evaluating_calls(context, loop, test):
            network = network_code(context, loop.network_calls[0])
            nodes = own_nodes(context.script.function(loop.node))
            told = [keys_in(node) for node in nodes if isinstance(node, ast.Call)]
            # The network, or a function that may set its mode, may be passed the phase.
            is_told = any({network, *keys_in(test)} <= keys for keys in told)
            if not is_told and depends_on_mode(context, called_object(loop.network_calls[0].call)):
                problem = f"{network} is evaluated in training mode: its mode is never set"
                line = f"{network}.train({context.script.code(test)})"
                yield _mistake(context, loop, problem, line, is_certain=False)


RULE = Rule(
    id="missing-eval",
    title="Evaluation in training mode",
    why=(
        "In training mode dropout is random, and batch norm uses the statistics of the current "
        "batch and updates its own: the results depend on chance and on how the test images are "
        "batched."
    ),
    check=_check,
    pattern=TRAINING_CODE,
)


def _mistake(
    context: Context, loop: BatchLoop, problem: str, line: str, is_certain: bool
) -> Mistake:
    statement = context.script.statement(loop.node)
    fixed = show_with_line_above(context.script, statement, line)
    changes = insert_line_above(context.script, statement, line) if is_certain else []
    return Mistake(statement, problem, fixed, changes=changes)


def _call_in_training_mode(context: Context, loop: BatchLoop) -> NetworkCall | None:
    for network_call in loop.network_calls:
        if (
            _mode(context, network_call) == "train"
            and not _is_deliberate(context, loop, network_call.call)
            and not _is_repeated(context, loop, network_call.call)
            and depends_on_mode(context, called_object(network_call.call))
        ):
            return network_call
    return None


def _mode(context: Context, network_call: NetworkCall) -> Mode | None:
    """The mode in which a loop runs a network."""
    call, helper = network_call
    name = last_name(called_object(call))
    mode = context.modes.set_before(call, name)
    if mode is not None:
        return mode
    if helper is None:
        return context.modes.at(call, name)
    function = context.values.callee(helper)
    if isinstance(function, FUNCTIONS):
        name = context.modes.name_at_call(helper, function, name)
    return context.modes.at(helper, name)


def _is_deliberate(context: Context, loop: BatchLoop, call: ast.Call) -> bool:
    """Return whether `.train()` is meant for this loop, as to measure batch norm statistics."""
    scope, position = context.script.function(call), start_position(loop.node)
    if _BATCH_NORM_UPDATE.search(getattr(scope, "name", "")):
        return True
    before = [
        event
        for event in context.modes.calls_in(scope)
        if start_position(event.call) < start_position(call) and event.function is None
    ]
    if not before or before[-1].mode != "train":
        return False
    return not any(
        other.trains
        and context.script.function(other.node) is scope
        and start_position(before[-1].call) < start_position(other.node) < position
        for other in context.batch_loops
    )


def _is_repeated(context: Context, loop: BatchLoop, call: ast.Call) -> bool:
    """Return whether a batch passes a network several times, as it does in Monte Carlo dropout."""
    for parent in context.script.ancestors(call):
        if parent is loop.node or isinstance(parent, FUNCTIONS):
            return False
        if isinstance(parent, (ast.For, *COMPREHENSIONS)):
            heads = parent.generators if isinstance(parent, COMPREHENSIONS) else [parent]
            if not names_in(*(head.target for head in heads)) & names_in(call):
                return True
    return False


def _is_set_back(context: Context) -> bool:
    """Return whether the script calls `.train()`, or trains nothing."""
    return bool(context.values.calls("train")) or not any(
        loop.trains for loop in context.batch_loops
    )
