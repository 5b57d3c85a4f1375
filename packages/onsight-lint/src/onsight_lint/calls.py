"""The parts of calls and functions: names, keyword arguments, defaults."""

import ast

from onsight_lint.source import Function


def last_name(expression: ast.AST) -> str:
    """The last part of a dotted name: `step` of `optimizer.step`."""
    match expression:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name):
            return name
        case ast.Call(func=function):
            return last_name(function)
    return ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument, or None."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def default(function: Function, name: str) -> ast.expr | None:
    """The default of a parameter, or None."""
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    defaults: dict[str, ast.expr | None] = dict(
        zip([one.arg for one in places][::-1], arguments.defaults[::-1], strict=False)
    )
    only = zip([one.arg for one in arguments.kwonlyargs], arguments.kw_defaults, strict=True)
    return (defaults | dict(only)).get(name)
