"""Rules on evaluation: without `.eval()`, never back in `.train()`, with gradients on."""

import ast
import re
from collections.abc import Iterator, Sequence

from onsight.explain.reading.calls import last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import above, found, within
from onsight.explain.reading.gradients import Gradients
from onsight.explain.reading.layers import changes_by_mode
from onsight.explain.reading.loops import BatchLoop, phase_test
from onsight.explain.reading.modes import Modes
from onsight.explain.reading.source import FUNCTIONS, start_place

_NORM = re.compile(r"(^|_)bn(_|$)|batch_?norm|calib|(^|_)stats$", re.IGNORECASE)
_WHY_EVAL = (
    "In training mode dropout drops at random and batch norm uses, and learns from, the batch at "
    "hand: the figures depend on chance and on how the test pictures are batched."
)
_WHY_GRADIENTS = (
    "Each forward keeps all activations for a backward that never comes: evaluation needs several "
    "times the memory, and more time."
)


def missing_eval(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """Evaluation of a network that is still in training mode."""
    modes = Modes(facts)
    for loop in loops:
        if loop.evaluates and (run := _run_in_training(facts, modes, loops, loop)):
            network = _network(facts, *run)
            line = f"{network}.eval()"
            yield _eval_finding(facts, loop, network, line, "without")
        elif loop.runs and not _any_mode(facts) and (test := phase_test(loop)) is not None:
            network = _network(facts, *loop.runs[0])
            line = f"{network}.train({facts.script.words(test)})"
            yield _eval_finding(facts, loop, network, line, "in turns with training, without")


def missing_no_grad(facts: Facts, loops: Sequence[BatchLoop]) -> Iterator[Finding]:
    """Evaluation that builds a graph for every batch."""
    gradients = Gradients(facts, Modes(facts))
    if not any(loop.trains for loop in loops) and _freezes(facts):
        return
    for loop in loops:
        if not loop.evaluates:
            continue
        for call, helper in loop.runs:
            if _needs_no_graph(facts, gradients, call, helper):
                yield _gradient_finding(facts, helper or call, _network(facts, call, helper))
                break


def _run_in_training(
    facts: Facts, modes: Modes, loops: Sequence[BatchLoop], loop: BatchLoop
) -> tuple[ast.Call, ast.Call | None] | None:
    for call, helper in loop.runs:
        name = last_name(call.func)
        mode = modes.before(call, name)
        if mode is None and helper is not None:
            function = facts.values.callee(helper)
            inner = (
                modes.handed(helper, function, name) if isinstance(function, FUNCTIONS) else name
            )
            mode = modes.at(helper, inner)
        elif mode is None:
            mode = modes.at(call, name)
        deliberate = mode == "train" and _deliberate(facts, modes, loops, loop, call)
        if mode == "train" and not deliberate and changes_by_mode(facts, call.func):
            return call, helper
    return None


def _deliberate(
    facts: Facts, modes: Modes, loops: Sequence[BatchLoop], loop: BatchLoop, call: ast.Call
) -> bool:
    """Whether `.train()` was called just for this loop, as to measure batch norm anew."""
    scope, place = facts.script.function(call), start_place(loop.node)
    if _NORM.search(getattr(scope, "name", "")):
        return True
    before = [
        event
        for event in modes.events(scope)
        if start_place(event.call) < start_place(call) and event.function is None
    ]
    if not before or before[-1].mode != "train":
        return False
    between = (
        other
        for other in loops
        if other.trains and facts.script.function(other.node) is scope
        if start_place(before[-1].call) < start_place(other.node) < place
    )
    return next(between, None) is None


def _eval_finding(facts: Facts, loop: BatchLoop, network: str, line: str, how: str) -> Finding:
    statement = facts.script.source(loop.node).statement(loop.node)
    text = above(facts.script, statement, line)
    problem = f"{network} is evaluated {how} {network}.eval()"
    return found(facts.script, statement, "missing-eval", problem, _WHY_EVAL, text)


def _gradient_finding(facts: Facts, call: ast.Call, network: str) -> Finding:
    statement = facts.script.source(call).statement(call)
    text = within(facts.script, statement, "with torch.no_grad():")
    problem = f"{network} is evaluated with gradients switched on"
    return found(facts.script, call, "missing-no-grad", problem, _WHY_GRADIENTS, text)


def _network(facts: Facts, call: ast.Call, helper: ast.Call | None) -> str:
    """The words for a network where the loop over batches stands."""
    if helper is not None:
        function = facts.values.callee(helper)
        if isinstance(function, FUNCTIONS):
            value = facts.values.argument(helper, function, last_name(call.func))
            if value is not None:
                return facts.script.words(value)
    return facts.script.words(call.func)


def _needs_no_graph(
    facts: Facts, gradients: Gradients, call: ast.Call, helper: ast.Call | None
) -> bool:
    if last_name(facts.script.parent(call)) in ("detach", "data"):
        return False
    for owner in facts.values.classes(call.func):
        forward = facts.values.method(owner, "forward")
        if forward is not None and gradients.is_decorated(forward):
            return False
    if helper is not None and gradients.off_here(call):
        return False
    return not gradients.off(helper or call)


def _freezes(facts: Facts) -> bool:
    """Whether weights are told to need no gradient."""
    for node in facts.script.nodes():
        match node:
            case ast.Assign(
                targets=[ast.Attribute(attr="requires_grad")], value=ast.Constant(value=False)
            ):
                return True
    return any(
        isinstance(one, ast.Constant) and one.value is False
        for call in facts.values.calls("requires_grad_")
        for one in call.args
    )


def _any_mode(facts: Facts) -> bool:
    return any(facts.values.calls(name) for name in ("eval", "train"))
