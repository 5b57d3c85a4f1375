"""The loops over DataLoaders in a script, and whether they train or evaluate."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.flow import feeds_backward, key_of
from onsight_lint.source import (
    COMPREHENSIONS,
    FUNCTIONS,
    Function,
    body_nodes,
    own_nodes,
)
from onsight_lint.vocabulary import OPTIMIZER_USES, Kind, word_set

_WRAPPERS = word_set(  # calls around a loader in the head of a loop
    "enumerate tqdm track iter islice zip log_every progress_bar prefetch cycle reversed"
)
_TRAINS = re.compile(r"backward|optim|scaler|zero_grad|_opt$|autograd")
_UPDATES = re.compile(r"backward|zero_grad|autograd|optimizer_step")


class Run(NamedTuple):
    """A call that runs a network; helper: the call of a function that contains it, or None."""

    call: ast.Call
    helper: ast.Call | None = None


@dataclass(eq=False)
class BatchLoop:
    """A loop or comprehension over the batches of a loader.

    targets: the names that a batch is assigned to; trains: whether its batches change weights;
    runs: the calls in it that run a network.
    """

    node: ast.AST
    loader: ast.expr
    targets: list[ast.Name]
    trains: bool = False
    runs: list[Run] = field(default_factory=list)

    @property
    def evaluates(self) -> bool:
        """Whether it runs a network without training it."""
        return bool(self.runs) and not self.trains


def batch_loops(facts: Facts) -> list[BatchLoop]:
    """All loops over loaders, in source order."""
    found = []
    for node in facts.script.nodes(ast.For, ast.AsyncFor, *COMPREHENSIONS):
        for iterated, target in _heads(node):
            loader = _loader(facts, iterated)
            if facts.kinds.kind(loader) is Kind.LOADER:
                loop = BatchLoop(node, loader, _names(target))
                loop.trains = _trains(facts, loop)
                loop.runs = list(_runs(facts, loop))
                found.append(loop)
    return found


def loop_nodes(loop: BatchLoop) -> Iterator[ast.AST]:
    """The nodes that run for each batch."""
    if isinstance(loop.node, (ast.For, ast.AsyncFor, ast.While)):
        return body_nodes(loop.node)
    return own_nodes(loop.node)


def phase_test(loop: BatchLoop) -> ast.expr | None:
    """The test, such as `phase == "train"`, under which a loop computes gradients."""
    if not isinstance(loop.node, (ast.For, ast.AsyncFor)):
        return None
    for node in body_nodes(loop.node):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            words = [one.value for one in ast.walk(node.test) if isinstance(one, ast.Constant)]
            said = any(isinstance(word, str) and re.search("train", word) for word in words)
            equal = isinstance(node.test.ops[0], ast.Eq)
            calls = (one for part in node.body for one in (part, *own_nodes(part)))
            if said and equal and any(last_name(one) == "backward" for one in calls):
                return node.test
    return None


def loop_rows(facts: Facts, loop: BatchLoop) -> str:
    """The number of rows of a batch, in the loop's own names: `len(labels)`."""
    tensors = [one.id for one in loop.targets if facts.kinds.kind(one) is Kind.TENSOR]
    if not tensors:
        for node in loop_nodes(loop):
            if isinstance(node, ast.Assign):
                parts = [part for target in node.targets for part in ast.walk(target)]
                names = [part for part in parts if isinstance(part, ast.Name)]
                kinds = facts.kinds
                tensors += [part.id for part in names if kinds.comes_from_batch(part, node.value)]
    targets = [one.id for one in loop.targets]
    return f"len({(tensors or targets or ['batch'])[-1]})"


def network_name(facts: Facts, call: ast.Call, helper: ast.Call | None) -> str:
    """The code that names a network in the function of the loop over batches."""
    if helper is not None:
        function = facts.values.callee(helper)
        if isinstance(function, FUNCTIONS):
            value = facts.values.argument(helper, function, last_name(call.func))
            if value is not None:
                return facts.script.code(value)
    return facts.script.code(call.func)


def unwrapped(iterated: ast.expr) -> ast.expr:
    """The loader in `enumerate(tqdm(loader))`."""
    while isinstance(iterated, ast.Call) and iterated.args:
        if last_name(iterated.func) not in _WRAPPERS:
            break
        iterated = iterated.args[0]
    return iterated


def _loader(facts: Facts, iterated: ast.expr) -> ast.expr:
    """The loader that is iterated over, also by the name of a progress bar around it."""
    loader = unwrapped(iterated)
    if isinstance(loader, ast.Name):
        made = facts.script.scope(loader).reaching(loader)
        value = made[0].value if len(made) == 1 and not made[0].steps else None
        if isinstance(value, ast.Call) and unwrapped(value) is not value:
            return unwrapped(value)
    return loader


def is_batch_number(loop: BatchLoop, expression: ast.expr) -> bool:
    """Whether an expression is the batch number from enumerate."""
    node = loop.node
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return False
    first = node.target.elts[0]
    numbered = isinstance(node.iter, ast.Call) and unwrapped(node.iter) is not node.iter
    return numbered and key_of(first) == key_of(expression) != ""


def trains(facts: Facts, node: ast.AST) -> bool:
    """Whether a piece of code, or a function that it calls, computes gradients or steps."""
    if any(_TRAINS.search(word) for word in _words(node)) or _has_optimizer(facts, node):
        return True
    functions = reached(facts, node)
    return any(_UPDATES.search(word) for function in functions for word in _words(function))


def reached(facts: Facts, node: ast.AST) -> list[Function]:
    """The functions of these files that a piece of code calls, directly or indirectly."""
    found = _called(facts, node)
    for function in found:
        found.extend(one for one in _called(facts, function) if one not in found)
    return found


def _has_optimizer(facts: Facts, node: ast.AST) -> bool:
    """Whether a piece of code uses an `opt` that is no set of options."""
    names = [one for one in own_nodes(node) if isinstance(one, ast.Name) and one.id == "opt"]
    used = [facts.kinds.uses(one) for one in names[:1]]
    return any(not words or words & OPTIMIZER_USES for words in used)


def _words(node: ast.AST) -> Iterator[str]:
    for one in own_nodes(node):
        if isinstance(one, (ast.Name, ast.Attribute)):
            yield last_name(one)
        elif isinstance(one, ast.keyword):
            yield one.arg or ""


def _called(facts: Facts, node: ast.AST) -> list[Function]:
    found: list[Function] = []
    for one in (node, *own_nodes(node)):
        callee = facts.values.callee(one) if isinstance(one, ast.Call) else None
        if isinstance(callee, ast.ClassDef):
            callee = facts.values.method(callee, "__init__")
        if isinstance(callee, FUNCTIONS) and callee not in found:
            found.append(callee)
    return found


def network_calls(facts: Facts, node: ast.AST) -> list[ast.Call]:
    """The calls in a piece of code that run a network."""
    calls = (one for one in own_nodes(node) if isinstance(one, ast.Call))
    return [call for call in calls if runs_network(facts, call)]


def runs_network(facts: Facts, call: ast.Call) -> bool:
    """Whether a call is a network's forward pass."""
    if facts.script.definition(call.func) is not None or facts.script.path_of(call.func):
        return False
    return facts.kinds.kind(call.func) is Kind.NETWORK


def _heads(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, (ast.For, ast.AsyncFor)):
        yield node.iter, node.target
    elif isinstance(node, COMPREHENSIONS):
        yield node.generators[0].iter, node.generators[0].target


def _names(target: ast.expr) -> list[ast.Name]:
    return [one for one in ast.walk(target) if isinstance(one, ast.Name)]


def _trains(facts: Facts, loop: BatchLoop) -> bool:
    return trains(facts, loop.node) or feeds_backward(facts, loop.node)


def _runs(facts: Facts, loop: BatchLoop) -> Iterator[Run]:
    for node in loop_nodes(loop):
        if not isinstance(node, ast.Call):
            continue
        if runs_network(facts, node):
            yield Run(node)
            continue
        helper = facts.values.callee(node)
        if isinstance(helper, FUNCTIONS) and not _is_forward(facts, helper):
            for call in network_calls(facts, helper):
                yield Run(call, node)


def _is_forward(facts: Facts, function: Function) -> bool:
    """Whether a function is a method of a module, which runs the module's own layers."""
    owner = facts.script.parent(function)
    return isinstance(owner, ast.ClassDef) and facts.kinds.is_module_class(owner)
