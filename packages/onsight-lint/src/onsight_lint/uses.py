"""How names are used in their scopes: with which methods, and whether they are called."""

import ast
import re

from onsight_lint.script import Script
from onsight_lint.vocabulary import (
    LOADER_NAME,
    LOSS_NAME,
    NETWORK_NAME,
    NETWORK_USES,
    OPTIMIZER_USES,
    Kind,
)


class Uses:
    """The attributes that each name in a script is used with, and the names that are called."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._use: dict[tuple[ast.AST, str], set[str]] = {}
        self._called: set[tuple[ast.AST, str]] = set()
        for node in script.nodes(ast.Attribute, ast.Call):
            self._note_use(node)

    def of(self, expression: ast.AST) -> set[str]:
        """The methods and attributes that a name or `self.name` is used with in its scope."""
        return self._use.get(self._key(expression), set())

    def kind(self, expression: ast.AST) -> Kind:
        """The kind that a name is used as, or that the name itself suggests."""
        key = self._key(expression)
        words, used = key[1], self._use.get(key, set())
        if not words:
            return Kind.UNKNOWN
        if LOSS_NAME.search(words) and key in self._called:
            return Kind.LOSS
        if LOADER_NAME.search(words) and not used & {"append", "items", "keys", "values"}:
            return Kind.LOADER
        if used & NETWORK_USES and not (used & OPTIMIZER_USES and key not in self._called):
            return Kind.NETWORK if "step" not in used else Kind.UNKNOWN
        if key in self._called and (used & {"eval", "state_dict"} or NETWORK_NAME.match(words)):
            return Kind.NETWORK
        if re.search(r"optim", words) or {"zero_grad", "step"} <= used:
            return Kind.OPTIMIZER
        return Kind.TENSOR if "backward" in used else Kind.UNKNOWN

    def _note_use(self, node: ast.AST) -> None:
        if isinstance(node, ast.Attribute):
            key = self._key(node.value)
            if key[1]:
                self._use.setdefault(key, set()).add(node.attr)
        elif isinstance(node, ast.Call):
            self._called.add(self._key(node.func))

    def _key(self, expression: ast.AST) -> tuple[ast.AST, str]:
        """The scope of a name or `self.name`, and its code; "" for anything else."""
        if isinstance(expression, ast.arg):
            return self.script.parent(self.script.parent(expression)), expression.arg
        if isinstance(expression, ast.Name):
            scopes = self.script.scope(expression)
            bindings = scopes.lookup(expression)
            node = bindings[0].node if bindings else self.script.source(expression).tree
            if isinstance(node, ast.arg):
                return self.script.parent(self.script.parent(node)), expression.id
            return scopes.scope(node) if bindings else node, expression.id
        if isinstance(expression, ast.Attribute) and _is_self(expression.value):
            owner = self.script.enclosing_class(expression)
            if owner is not None:
                return owner, f"self.{expression.attr}"
        return expression, ""


def _is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id == "self"
