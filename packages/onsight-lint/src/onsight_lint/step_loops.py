"""Loops without a DataLoader: batches sliced from tensors, or training on all rows at once."""

import ast
from collections.abc import Iterator, Sequence

from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.flow import key_of
from onsight_lint.loops import BatchLoop, Run, network_calls, trains, unwrapped
from onsight_lint.source import body_nodes
from onsight_lint.vocabulary import word_set

_EVALUATES = word_set("argmax item tolist numpy topk eq")  # methods that pass on no gradient


def step_loops(facts: Facts, loops: Sequence[BatchLoop]) -> list[BatchLoop]:
    """The given loops over loaders, and those that do the same without one."""
    taken = {loop.node for loop in loops}
    found = list(loops)
    for node in facts.script.nodes(ast.For, ast.AsyncFor, ast.While):
        if node in taken:
            continue
        head = node.test if isinstance(node, ast.While) else node.iter
        calls = network_calls(facts, node)
        if calls and _asks_for_gradients(facts, node):
            found.append(BatchLoop(node, head, [], True, [Run(call) for call in calls]))
        elif isinstance(node, ast.For) and (calls := list(_sliced(facts, node, calls))):
            found.append(BatchLoop(node, head, [], False, [Run(call) for call in calls]))
    return found


def _asks_for_gradients(facts: Facts, loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether a loop contains a backward call that is not in a nested loop."""
    for node in body_nodes(loop):
        if isinstance(node, ast.Call) and last_name(node.func) == "backward":
            around = facts.script.source(node).ancestors(node)
            nearest = next(one for one in around if isinstance(one, (ast.For, ast.While)))
            if nearest is loop:
                return True
    return False


def _sliced(facts: Facts, loop: ast.For, calls: Sequence[ast.Call]) -> Iterator[ast.Call]:
    """The calls of a network in an evaluation by index: `net(images[i : i + 100])`."""
    counted = unwrapped(loop.iter)
    if not isinstance(counted, ast.Call) or last_name(counted.func) != "range":
        return
    owner = facts.script.enclosing_class(loop)
    if trains(facts, loop) or (owner is not None and facts.kinds.is_module_class(owner)):
        return
    words = {last_name(one) for one in body_nodes(loop) if isinstance(one, ast.Attribute)}
    if not words & _EVALUATES:
        return
    for call in calls:
        parts = [one for value in call.args for one in ast.walk(value)]
        slices = [one.slice for one in parts if isinstance(one, ast.Subscript)]
        names = [one for part in slices for one in ast.walk(part) if isinstance(one, ast.Name)]
        if key_of(loop.target) in map(key_of, names):
            yield call
