"""What flows into a backward call: the names whose gradients are computed."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.source import own_nodes

_TAKES_LOSS = re.compile(r"backward|^grad$|^scale$|scaler")
_OPTIMIZER = re.compile(r"optim|(^|_)opt$")


def key_of(expression: ast.AST) -> str:
    """A key that identifies a name, attribute or item within a function; "" for others."""
    match expression:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{key_of(value)}.{name}" if key_of(value) else ""
        case ast.Subscript(value=value):
            return key_of(value)
    return ""


def backward_calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls in a piece of code that compute gradients."""
    for one in own_nodes(node):
        if isinstance(one, ast.Call) and (
            _TAKES_LOSS.search(last_name(one.func))
            or any(_OPTIMIZER.search(last_name(value)) for value in one.args)
        ):
            yield one


def backward_keys(scope: ast.AST) -> set[str]:
    """The names of a function whose values flow into a backward call in it."""
    wanted: set[str] = set()
    for call in backward_calls(scope):
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        for part in (owner, *call.args):
            if part is not None:
                wanted |= keys(part)
    flows = list(_flows(scope))
    while True:
        more = {key for target, keys in flows if target in wanted for key in keys} - wanted
        if not more:
            return wanted
        wanted |= more


def feeds_backward(facts: Facts, loop: ast.AST) -> bool:
    """Whether gradients of what a loop adds up are computed after it."""
    scope = facts.script.function(loop)
    wanted = backward_keys(scope)
    return any(key in wanted for key in _gathered(loop))


def _gathered(loop: ast.AST) -> Iterator[str]:
    """The names in which a loop collects tensors: added up, or appended to a list."""
    for node in own_nodes(loop):
        match node:
            case ast.AugAssign(target=target, value=value) if not _is_number(value):
                yield key_of(target)
            case ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[value]):
                if not _is_number(value):
                    yield key_of(owner)


def _is_number(expression: ast.expr) -> bool:
    """Whether a value is a plain number, read from a tensor."""
    calls = (one for one in ast.walk(expression) if isinstance(one, ast.Call))
    return isinstance(expression, ast.Constant) or any(
        last_name(call.func) in ("item", "detach", "float", "tolist") for call in calls
    )


def _flows(scope: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """(name, the names in a value that is assigned or appended to it)."""
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign):
            for target in (key for one in node.targets for key in keys(one)):
                yield target, keys(node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and node.value is not None:
            yield key_of(node.target), keys(node.value)
        elif isinstance(node, ast.Call) and last_name(node.func) in ("append", "extend"):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            for value in node.args:
                yield key_of(owner), keys(value)


def keys(expression: ast.AST) -> set[str]:
    """The names in an expression, each in full: `self.net`, not `self`."""
    found: set[str] = set()
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        key = key_of(node) if isinstance(node, ast.expr) else ""
        if key:
            found.add(key)
        if isinstance(node, ast.Subscript):
            waiting.append(node.slice)
        elif not key:
            waiting.extend(ast.iter_child_nodes(node))
    return found
