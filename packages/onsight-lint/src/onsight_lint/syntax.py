"""Helpers for Python syntax trees: walking them, and reading names, calls and blocks."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Loop = ast.For | ast.AsyncFor | ast.While
Position = tuple[int, int]  # line from 1, column from 0 in bytes of UTF-8, as in Python's ast

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OWN_SCOPE = (*DEFINITIONS, ast.Lambda)
_LEAVES = (ast.Name, ast.Constant, ast.alias, ast.Global, ast.Nonlocal)  # hold no other nodes
_NO_NODES = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "n", "s", "kind", "type_comment"})


def start_position(node: ast.AST) -> Position:
    """Return the line and column at which a node begins."""
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0)


def end_position(node: ast.AST) -> Position:
    """Return the line and column just after the end of a node."""
    return getattr(node, "end_lineno", 1), getattr(node, "end_col_offset", 0)


def children(node: ast.AST) -> list[ast.AST]:
    """Return a node's child nodes in source order, excluding expression contexts and operators."""
    nodes: list[ast.AST] = []
    kind: Any = type(node)
    for name in _child_fields(kind):
        part = getattr(node, name, None)
        if isinstance(part, list):
            nodes += [item for item in part if isinstance(item, ast.AST)]
        elif isinstance(part, ast.AST):
            nodes.append(part)
    return nodes


def own_nodes(node: ast.AST) -> list[ast.AST]:
    """Return the nodes within a node, in source order, without the insides of nested functions.

    For a function or class, these are the nodes of its body: decorators, arguments, defaults and
    base classes are skipped. The list is kept in the node, because rules ask for it repeatedly.
    """
    nodes: list[ast.AST] | None = vars(node).get("_own_nodes")
    if nodes is None:
        nodes = vars(node)["_own_nodes"] = []
        if isinstance(node, DEFINITIONS):
            waiting: list[ast.AST] = [*reversed(node.body)]
        else:
            waiting = children(node)[::-1]
        while waiting:
            child = waiting.pop()
            nodes.append(child)
            if not isinstance(child, _OWN_SCOPE):
                waiting += reversed(children(child))
    return nodes


def body_nodes(loop: Loop) -> Iterator[ast.AST]:
    """Yield the nodes in the body of a loop, without the insides of nested functions."""
    for statement in loop.body:
        yield statement
        if not isinstance(statement, _OWN_SCOPE):
            yield from own_nodes(statement)


def block_nodes(block: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements of a block and the nodes within each."""
    for statement in block:
        yield statement
        yield from own_nodes(statement)


def expressions_in(node: ast.AST) -> Iterator[ast.expr]:
    """Yield every expression in a node, including the node itself."""
    return (part for part in ast.walk(node) if isinstance(part, ast.expr))


def names_in(*nodes: ast.AST) -> set[str]:
    """Return the plain names within nodes."""
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def last_name(expression: ast.AST) -> str:
    """Return the last part of a dotted name, such as `step` of `optimizer.step`."""
    match expression:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name):
            return name
        case ast.Call(func=function):
            return last_name(function)
    return ""


def key_of(expression: ast.AST) -> str:
    """Return a dotted key for a name, attribute or item, such as `self.losses`; else "".

    `self.losses` and `self.losses[0]` have the same key.
    """
    match expression:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{key_of(value)}.{name}" if key_of(value) else ""
        case ast.Subscript(value=value):
            return key_of(value)
    return ""


def keys_in(expression: ast.AST) -> set[str]:
    """Return the keys in an expression, each in full: `self.net`, not `self`."""
    keys: set[str] = set()
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        key = key_of(node) if isinstance(node, ast.expr) else ""
        if key:
            keys.add(key)
        if isinstance(node, ast.Subscript):
            waiting.append(node.slice)
        elif not key:
            waiting.extend(ast.iter_child_nodes(node))
    return keys


def call_owner(call: ast.Call) -> ast.expr | None:
    """Return the object that a method is called on."""
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def called_object(call: ast.Call) -> ast.expr:
    """Return what a call runs: `net` of `net(x)` and of `net.forward(x)`."""
    owner = call_owner(call)
    return owner if owner is not None and last_name(call.func) == "forward" else call.func


def keyword_value(call: ast.Call, name: str) -> ast.expr | None:
    """Return the value of a keyword argument, or None."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def argument_values(call: ast.Call) -> list[ast.expr]:
    """Return the values that a call passes, by position and by keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def option_name(call: ast.Call) -> str:
    """Return the attribute that an option of `add_argument` sets; "" if it is not written out."""
    written = [getattr(value, "value", "") for value in (keyword_value(call, "dest"), *call.args)]
    names = [name for name in written if isinstance(name, str) and name]
    long_names = [name for name in names if not re.match("-(?!-)", name)]
    return next(iter([*long_names, *names]), "").lstrip("-").replace("-", "_")


def default_value(function: Function, name: str) -> ast.expr | None:
    """Return the default of a parameter, or None."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: dict[str, ast.expr | None] = dict(
        zip([item.arg for item in positional][::-1], arguments.defaults[::-1], strict=False)
    )
    only = zip([item.arg for item in arguments.kwonlyargs], arguments.kw_defaults, strict=True)
    return (defaults | dict(only)).get(name)


def is_main_guard(node: ast.AST) -> bool:
    """Return whether a node looks like `if __name__ == "__main__":` (a test of `__name__`)."""
    return isinstance(node, ast.If) and "__name__" in names_in(node.test)


def word_set(text: str) -> frozenset[str]:
    """Return the words of a string."""
    return frozenset(text.split())


@cache
def _child_fields(kind: Any) -> tuple[str, ...]:
    """The fields of a type of node that may hold other nodes, in source order."""
    if issubclass(kind, _LEAVES):
        return ()
    return tuple(name for name in kind._fields if name not in _NO_NODES)
