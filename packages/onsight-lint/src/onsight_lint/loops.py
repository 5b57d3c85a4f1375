"""The loops over batches in a script, and whether they train or evaluate."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from onsight_lint.facts import Facts
from onsight_lint.kinds import OPTIMIZER_ATTRIBUTES, Kind
from onsight_lint.syntax import (
    COMPREHENSIONS,
    FUNCTIONS,
    LOOPS,
    Function,
    Loop,
    block_nodes,
    body_nodes,
    call_owner,
    called_object,
    key_of,
    keys_in,
    last_name,
    own_nodes,
    word_set,
)

_MAX_CALLS = 20  # of networks in a helper, considered for each of its calls
_LOADER_WRAPPERS = word_set(  # calls around a loader in the head of a loop
    "enumerate tqdm track iter islice zip log_every progress_bar prefetch cycle reversed"
)
_TRAINING_NAME = re.compile(r"backward|optim|scaler|zero_grad|_opt$|autograd")
_TRAINING_NAME_IN_HELPER = re.compile(r"backward|zero_grad|autograd|optimizer_step")
_READS_OUTPUT = word_set("argmax item tolist numpy topk eq")  # methods without gradients
_TAKES_LOSS = re.compile(r"backward|^grad$|^scale$|scaler")
_OPTIMIZER_NAME = re.compile(r"optim|(^|_)opt$")
_NEEDS_GRADIENTS = re.compile(r"backward|^grad$|autograd|requires_grad")
_PHASE_TEST = re.compile(r"\w*train\w*|(?=.*'[^']*train).* == .*")  # as `ast.unparse` writes it


class NetworkCall(NamedTuple):
    """A call that runs a network for the batches of a loop."""

    call: ast.Call
    helper: ast.Call | None = None  # the call, in the loop, of the function that contains it


@dataclass(eq=False)
class BatchLoop:
    """A loop or comprehension over batches."""

    node: ast.AST
    loader: ast.expr
    targets: list[ast.Name]  # the names that a batch is assigned to
    trains: bool = False  # whether it changes weights
    network_calls: list[NetworkCall] = field(default_factory=list)

    @property
    def evaluates(self) -> bool:
        """Return whether the loop runs a network without training it."""
        return bool(self.network_calls) and not self.trains


def find_loader_loops(facts: Facts) -> Iterator[BatchLoop]:
    """Yield all loops over DataLoaders."""
    for node in facts.script.nodes(ast.For, ast.AsyncFor, *COMPREHENSIONS):
        head = node.generators[0] if isinstance(node, COMPREHENSIONS) else node
        loader = _loader(facts, head.iter)
        if facts.kinds.kind(loader) is Kind.LOADER:
            targets = [part for part in ast.walk(head.target) if isinstance(part, ast.Name)]
            loop = BatchLoop(node, loader, targets)
            loop.trains = is_training(facts, node) or _feeds_backward(facts, node)
            loop.network_calls = list(_network_calls(facts, loop))
            yield loop


def find_plain_loops(facts: Facts, loader_loops: list[BatchLoop]) -> Iterator[BatchLoop]:
    """Yield the loops that train or evaluate without a DataLoader.

    They slice batches from tensors, or train on all rows at once.
    """
    known = {loop.node for loop in loader_loops}
    for node in facts.script.nodes(*LOOPS):
        if node in known:
            continue
        head = node.test if isinstance(node, ast.While) else node.iter
        calls = network_calls(facts, node)
        trains = bool(calls) and _calls_backward(facts, node)
        if not trains:
            calls = list(_sliced_calls(facts, node, calls)) if isinstance(node, ast.For) else []
        if calls:
            yield BatchLoop(node, head, [], trains, [NetworkCall(call) for call in calls])


def find_loaders_for_other_files(
    facts: Facts, loops: list[BatchLoop]
) -> Iterator[tuple[list[ast.Call], list[ast.Call]]]:
    """Yield the training and test loaders, by their names, that a function makes but no loop uses.

    Functions without a training loader are left out.
    """
    used = {call for loop in loops for call in facts.loaders.creations(loop.loader)}
    unused: dict[ast.AST, list[ast.Call]] = defaultdict(list)
    for call in facts.values.calls("DataLoader"):
        if call not in used:
            unused[facts.script.function(call)].append(call)
    for calls in unused.values():
        trained = [call for call in calls if "train" in facts.loaders.name(call)]
        if trained:
            yield trained, [call for call in calls if facts.loaders.is_for_tests(call)]


def loop_nodes(loop: BatchLoop) -> Iterator[ast.AST]:
    """Yield the nodes that run for each batch."""
    return body_nodes(loop.node) if isinstance(loop.node, LOOPS) else iter(own_nodes(loop.node))


def phase_test(loop: BatchLoop) -> ast.expr | None:
    """Return the test, `phase == "train"` or `is_train`, under which a loop computes gradients."""
    nodes = [*body_nodes(loop.node)] if isinstance(loop.node, (ast.For, ast.AsyncFor)) else []
    needing = {node for node in nodes if _NEEDS_GRADIENTS.search(last_name(node))}
    tests = [node for node in nodes if isinstance(node, ast.If)]
    for node in tests if needing else []:
        if needing <= {*block_nodes(node.body)} and _PHASE_TEST.fullmatch(ast.unparse(node.test)):
            return node.test
    return None


def evaluating_calls(facts: Facts, loop: BatchLoop, test: ast.expr) -> list[ast.AST]:
    """Return the calls that run a loop for both phases to evaluate, by its `phase_test`.

    The loop itself counts where its own function goes through the phases. Calls in functions that
    never run it to train do not count: their callers may turn gradients off.
    """
    function = facts.script.function(loop.node)
    words = [part.value for part in ast.walk(test) if isinstance(part, ast.Constant)]
    runs: list[tuple[ast.AST, bool]] = []  # with whether they train
    for name in (part for part in ast.walk(test) if isinstance(part, ast.Name)):
        passed: list[tuple[ast.AST, ast.expr | None]] = []
        if isinstance(function, FUNCTIONS):
            sites = facts.values.call_sites(function)
            passed = [(site, facts.values.argument(site, function, name.id)) for site in sites]
        for place, value in passed if any(value for _, value in passed) else [(loop.node, name)]:
            nodes = [item.node for item in facts.values.origins(value)] if value else []
            values = [node.value for node in nodes if isinstance(node, ast.Constant)]
            runs += [(place, value in words if words else bool(value)) for value in values]
    homes = [facts.script.function(place) for place, trains in runs if trains]
    return [place for place, trains in runs if not trains and facts.script.function(place) in homes]


def batch_length(facts: Facts, loop: BatchLoop) -> str:
    """Return code for a batch's number of rows, in the names that the loop uses: `len(labels)`."""
    kinds = facts.kinds
    tensors = [name.id for name in loop.targets if kinds.kind(name) is Kind.TENSOR]
    if not tensors:
        for node in loop_nodes(loop):
            if isinstance(node, ast.Assign):
                parts = [part for target in node.targets for part in ast.walk(target)]
                names = [part for part in parts if isinstance(part, ast.Name)]
                tensors += [name.id for name in names if kinds.comes_from_batch(name, node.value)]
    targets = [name.id for name in loop.targets]
    return f"len({(tensors or targets or ['batch'])[-1]})"


def network_code(facts: Facts, network_call: NetworkCall) -> str:
    """Return the code that names a network in the function of the loop over batches."""
    call, helper = network_call
    if helper is not None:
        function = facts.values.callee(helper)
        if isinstance(function, FUNCTIONS):
            value = facts.values.argument(helper, function, last_name(called_object(call)))
            if value is not None:
                return facts.script.code(value)
    return facts.script.code(called_object(call))


def unwrap_loader(iterated: ast.expr) -> ast.expr:
    """Return the loader in `enumerate(tqdm(loader))`."""
    while isinstance(iterated, ast.Call) and iterated.args:
        if last_name(iterated.func) not in _LOADER_WRAPPERS:
            break
        iterated = iterated.args[0]
    return iterated


def is_batch_number(loop: BatchLoop, expression: ast.expr) -> bool:
    """Return whether an expression is the batch number from enumerate."""
    node = loop.node
    if not isinstance(node, ast.For) or not isinstance(node.target, ast.Tuple):
        return False
    is_wrapped = isinstance(node.iter, ast.Call) and unwrap_loader(node.iter) is not node.iter
    return is_wrapped and key_of(node.target.elts[0]) == key_of(expression) != ""


def is_training(facts: Facts, node: ast.AST) -> bool:
    """Return whether code, or a function that it calls, computes gradients or updates weights."""
    if any(map(_TRAINING_NAME.search, _names(node))) or _has_optimizer(facts, node):
        return True
    functions = called_functions(facts, node)
    return any(
        _TRAINING_NAME_IN_HELPER.search(name) for function in functions for name in _names(function)
    )


def called_functions(facts: Facts, node: ast.AST) -> list[Function]:
    """Return the functions of the script that code calls, directly or indirectly."""
    functions = _directly_called(facts, node)
    for function in functions:  # grows while it is iterated
        called = _directly_called(facts, function)
        functions.extend(other for other in called if other not in functions)
    return functions


def network_calls(facts: Facts, node: ast.AST) -> list[ast.Call]:
    """Return the calls in a piece of code that run a network."""
    if node not in facts.network_calls:
        calls = (part for part in own_nodes(node) if isinstance(part, ast.Call))
        facts.network_calls[node] = [call for call in calls if _runs_network(facts, call)]
    return facts.network_calls[node]


def backward_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a piece of code that compute gradients."""
    for call in own_nodes(node):
        if isinstance(call, ast.Call) and (
            _TAKES_LOSS.search(last_name(call.func))
            or any(_OPTIMIZER_NAME.search(last_name(value)) for value in call.args)
        ):
            yield call


def backward_keys(facts: Facts, scope: ast.AST) -> set[str]:
    """Return the keys of a function whose values flow into a backward call in it."""
    if scope not in facts.backward_keys:
        waiting: list[str] = []
        for call in backward_calls(scope):
            for part in (call_owner(call), *call.args):
                waiting += keys_in(part) if part is not None else ()
        flows: dict[str, set[str]] = defaultdict(set)
        for target, keys in _flows(scope):
            flows[target] |= keys
        wanted = facts.backward_keys[scope] = set()
        while waiting:
            key = waiting.pop()
            if key not in wanted:
                wanted.add(key)
                waiting += flows[key]
    return facts.backward_keys[scope]


def _loader(facts: Facts, iterated: ast.expr) -> ast.expr:
    """The loader that is iterated over, also by the name of a progress bar around it."""
    loader = unwrap_loader(iterated)
    value = facts.script.assigned_value(loader)
    if value is not None and unwrap_loader(value) is not value:
        return unwrap_loader(value)
    return loader


def _network_calls(facts: Facts, loop: BatchLoop) -> Iterator[NetworkCall]:
    """The calls that run a network in a loop, or in a function that it calls."""
    for node in loop_nodes(loop):
        if not isinstance(node, ast.Call):
            continue
        if _runs_network(facts, node):
            yield NetworkCall(node)
            continue
        helper = facts.values.callee(node)
        if not isinstance(helper, FUNCTIONS):
            continue
        if not facts.kinds.is_module_class(facts.script.parent(helper)):  # which runs its layers
            for call in network_calls(facts, helper)[:_MAX_CALLS]:
                yield NetworkCall(call, node)


def _runs_network(facts: Facts, call: ast.Call) -> bool:
    """Return whether a call is a network's forward pass."""
    if facts.script.definition(call.func) is not None or facts.script.path_of(call.func):
        return False
    return facts.kinds.kind(called_object(call)) is Kind.NETWORK


def _names(node: ast.AST) -> Iterator[str]:
    """The last parts of the names in a piece of code, and its keywords."""
    for part in own_nodes(node):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield last_name(part)
        elif isinstance(part, ast.keyword):
            yield part.arg or ""


def _has_optimizer(facts: Facts, node: ast.AST) -> bool:
    """Return whether a piece of code uses an `opt` that is an optimizer, not a set of options."""
    names = [part for part in own_nodes(node) if isinstance(part, ast.Name) and part.id == "opt"]
    uses = [facts.kinds.uses(name) for name in names[:1]]
    return any(not used or used & OPTIMIZER_ATTRIBUTES for used in uses)


def _directly_called(facts: Facts, node: ast.AST) -> list[Function]:
    functions: list[Function] = []
    for part in (node, *own_nodes(node)):
        callee = facts.values.callee(part) if isinstance(part, ast.Call) else None
        if isinstance(callee, ast.ClassDef):
            callee = facts.values.method(callee, "__init__")
        if isinstance(callee, FUNCTIONS) and callee not in functions:
            functions.append(callee)
    return functions


def _calls_backward(facts: Facts, loop: Loop) -> bool:
    """Return whether a loop contains a backward call that is not in a nested loop."""
    return any(
        isinstance(node, ast.Call)
        and last_name(node.func) == "backward"
        and next(facts.script.loops_around(node), None) is loop
        for node in body_nodes(loop)
    )


def _sliced_calls(facts: Facts, loop: ast.For, calls: list[ast.Call]) -> Iterator[ast.Call]:
    """The calls of a network in an evaluation by index: `net(images[i : i + 100])`."""
    counted = unwrap_loader(loop.iter)
    if not isinstance(counted, ast.Call) or last_name(counted.func) != "range":
        return
    owner = facts.script.enclosing_class(loop)
    if is_training(facts, loop) or facts.kinds.is_module_class(owner):
        return
    attributes = {node.attr for node in body_nodes(loop) if isinstance(node, ast.Attribute)}
    if not attributes & _READS_OUTPUT:
        return
    for call in calls:
        parts = [part for value in call.args for part in ast.walk(value)]
        slices = [part.slice for part in parts if isinstance(part, ast.Subscript)]
        names = [part for item in slices for part in ast.walk(item) if isinstance(part, ast.Name)]
        if key_of(loop.target) in map(key_of, names):
            yield call


def _feeds_backward(facts: Facts, loop: ast.AST) -> bool:
    """Return whether gradients of a sum that a loop accumulates are computed after it."""
    wanted = backward_keys(facts, facts.script.function(loop))
    return any(key in wanted for key in _accumulated_keys(loop))


def _accumulated_keys(loop: ast.AST) -> Iterator[str]:
    """The names in which a loop collects tensors: added up, or appended to a list."""
    for node in own_nodes(loop):
        match node:
            case ast.AugAssign(target=target, value=value) if not _is_number(value):
                yield key_of(target)
            case ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[value]):
                if not _is_number(value):
                    yield key_of(owner)


def _is_number(expression: ast.expr) -> bool:
    """Return whether a value is a plain number, read from a tensor."""
    calls = (part for part in ast.walk(expression) if isinstance(part, ast.Call))
    return isinstance(expression, ast.Constant) or any(
        last_name(call.func) in ("item", "detach", "float", "tolist") for call in calls
    )


def _flows(scope: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """Each key of a function, with the keys in a value that is assigned or appended to it."""
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign):
            for target in (key for part in node.targets for key in keys_in(part)):
                yield target, keys_in(node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            yield key_of(node.target), keys_in(node.value)
        elif isinstance(node, ast.Call) and last_name(node.func) in ("append", "extend"):
            key = key_of(call_owner(node) or node.func)
            yield from ((key, keys_in(value)) for value in node.args)
