"""Constant values in a script: numbers, flags, and the defaults of its command line."""

import ast

from onsight_lint.calls import keyword, last_name
from onsight_lint.script import Script
from onsight_lint.values import Values

_CORES = ("os.cpu_count", "multiprocessing.cpu_count", "os.process_cpu_count")


class Unknown:
    """The value of an expression that is not constant."""


UNKNOWN = Unknown()

Constant = int | float | str | bool | None | Unknown


class Constants:
    """Finds the one value that an expression always has."""

    def __init__(self, script: Script, values: Values) -> None:
        self.script, self.values = script, values

    def fixed(self, expression: ast.AST) -> Constant:
        """The value of a constant expression."""
        found = {self._value(node) for node in self._whole(expression)}
        return found.pop() if len(found) == 1 else UNKNOWN

    def fixed_or_default(self, expression: ast.AST) -> Constant:
        """The same, or the default of the command line option that it is."""
        fixed = self.fixed(expression)
        if fixed is not UNKNOWN:
            return fixed
        found = {self._default(node) for node in self._whole(expression)}
        return found.pop() if len(found) == 1 else UNKNOWN

    def _whole(self, expression: ast.AST) -> list[ast.AST | None]:
        origins = self.values.origins(expression)
        return [None if one.steps else one.node for one in origins]

    def _value(self, node: ast.AST | None) -> Constant:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str)):
            return node.value
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._value(node.operand)
            return -inner if isinstance(inner, (int, float)) else UNKNOWN
        return UNKNOWN

    def _default(self, node: ast.AST | None) -> Constant:
        if isinstance(node, ast.Call) and self.script.path_of(node.func) in _CORES:
            return 2  # or more, on any machine where it matters
        if isinstance(node, ast.Attribute):
            return self._flag(node.attr)
        return UNKNOWN if node is None else self._value(node)

    def _flag(self, name: str) -> Constant:
        """The default of `--name` on the command line."""
        for call in self.values.calls("add_argument"):
            flags = [one.value for one in call.args if isinstance(one, ast.Constant)]
            names = {str(flag).lstrip("-").replace("-", "_") for flag in flags}
            target = keyword(call, "dest")
            if isinstance(target, ast.Constant):
                names = {str(target.value)}
            default = keyword(call, "default")
            if name in names and default is not None and last_name(default) != name:
                return self.fixed(default)
        return UNKNOWN
