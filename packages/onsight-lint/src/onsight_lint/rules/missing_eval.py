"""Rule on evaluation of a network that is in training mode."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import above, inserted_above
from onsight_lint.layers import changes_by_mode
from onsight_lint.loops import BatchLoop, Run, network_name, phase_test
from onsight_lint.rule import Mistake, Rule
from onsight_lint.source import FUNCTIONS, start_place
from onsight_lint.vocabulary import LOOPS

_NORM = re.compile(r"(^|_)bn(_|$)|batch_?norm|calib|(^|_)stats$", re.IGNORECASE)
_WHY = (
    "In training mode dropout is random, and batch norm uses and learns from the current batch: "
    "the figures depend on chance and on how the test images are batched."
)


def _check(context: Context) -> Iterator[Mistake]:
    """Evaluation of a network that is still in training mode."""
    for loop in context.step_loops:
        if loop.evaluates and (run := _run_in_training(context, loop)):
            network = network_name(context, *run)
            line = f"{network}.eval()"
            mends = _is_set_back(context)  # else the training after it would be in evaluation mode
            yield _mistake(context, loop, network, line, "without", mends)
        elif loop.runs and not _any_mode(context) and (test := phase_test(loop)) is not None:
            network = network_name(context, *loop.runs[0])
            line = f"{network}.train({context.script.code(test)})"
            yield _mistake(context, loop, network, line, "in the same loop as training, without")


RULE = Rule("missing-eval", "Evaluation in training mode", _WHY, _check, LOOPS)


def _run_in_training(context: Context, loop: BatchLoop) -> Run | None:
    for call, helper in loop.runs:
        name = last_name(call.func)
        mode = context.modes.before(call, name)
        if mode is None and helper is not None:
            function = context.values.callee(helper)
            inner = (
                context.modes.name_at_call(helper, function, name)
                if isinstance(function, FUNCTIONS)
                else name
            )
            mode = context.modes.at(helper, inner)
        elif mode is None:
            mode = context.modes.at(call, name)
        deliberate = mode == "train" and _is_deliberate(context, loop, call)
        if mode == "train" and not deliberate and changes_by_mode(context, call.func):
            return Run(call, helper)
    return None


def _is_deliberate(context: Context, loop: BatchLoop, call: ast.Call) -> bool:
    """Whether `.train()` is meant for this very loop, as to measure batch norm statistics."""
    scope, place = context.script.function(call), start_place(loop.node)
    if _NORM.search(getattr(scope, "name", "")):
        return True
    before = [
        event
        for event in context.modes.events(scope)
        if start_place(event.call) < start_place(call) and event.function is None
    ]
    if not before or before[-1].mode != "train":
        return False
    between = (
        other
        for other in context.step_loops
        if other.trains and context.script.function(other.node) is scope
        if start_place(before[-1].call) < start_place(other.node) < place
    )
    return next(between, None) is None


def _is_set_back(context: Context) -> bool:
    """Whether the script calls `.train()`, or trains nothing."""
    return bool(context.values.calls("train")) or not any(
        loop.trains for loop in context.step_loops
    )


def _mistake(
    context: Context, loop: BatchLoop, network: str, line: str, how: str, mends: bool = False
) -> Mistake:
    statement = context.script.source(loop.node).statement(loop.node)
    text = above(context.script, statement, line)
    problem = f"{network} is evaluated {how} {network}.eval()"
    mend = inserted_above(context.script, statement, line) if mends else []
    return Mistake(statement, problem, text, mend=mend)


def _any_mode(context: Context) -> bool:
    return any(context.values.calls(name) for name in ("eval", "train"))
