"""The functions and classes of a script: bases and methods, arguments and what is returned."""

import ast

from onsight_lint.calls import default, last_name
from onsight_lint.script import Script
from onsight_lint.source import FUNCTIONS, Function, own_nodes


class Definitions:
    """What the definitions in a script's files say, without following values."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._returned: dict[Function, list[ast.expr]] = {}

    def bases(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """The base classes that are defined in these files."""
        found = (self.script.definition(base) for base in owner.bases)
        return [one for one in found if isinstance(one, ast.ClassDef) and one is not owner]

    def lineage(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and all its bases in these files."""
        line = [owner]
        for one in line:
            line.extend(base for base in self.bases(one) if base not in line)
        return line

    def method(self, owner: ast.ClassDef, name: str) -> Function | None:
        """The method of a class, its own or inherited."""
        for one in self.lineage(owner):
            for node in one.body:
                if isinstance(node, FUNCTIONS) and node.name == name:
                    return node
        return None

    def argument(self, call: ast.Call, function: Function, name: str) -> ast.expr | None:
        """What a call passes for a parameter, or else its default."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        places = [*function.args.posonlyargs, *function.args.args]
        names = [place.arg for place in places]
        if name in names:
            n = names.index(name) - self._bound(call, function)
            if 0 <= n < len(call.args):
                ahead = call.args[: n + 1]
                starred = any(isinstance(one, ast.Starred) for one in ahead)
                return None if starred else call.args[n]
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return default(function, name)

    def returns(self, function: Function) -> list[ast.expr]:
        """What a function returns; nothing for a generator."""
        if function not in self._returned:
            nodes = list(own_nodes(function))
            values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
            yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes)
            self._returned[function] = [] if yields else values
        return self._returned[function]

    def _bound(self, call: ast.Call, function: Function) -> int:
        """How many of a function's parameters are bound without being in the call (self, cls)."""
        if not isinstance(self.script.parent(function), ast.ClassDef):
            return 0
        decorators = {last_name(one) for one in function.decorator_list}
        if "staticmethod" in decorators:
            return 0
        named = isinstance(call.func, ast.Attribute) and isinstance(
            self.script.definition(call.func.value), ast.ClassDef
        )
        return 0 if named and "classmethod" not in decorators else 1
