"""Whether code runs without gradients, by contexts, decorators and global switches."""

import ast
import re

from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.modes import Modes
from onsight_lint.source import FUNCTIONS, Function, start_place
from onsight_lint.vocabulary import word_set

_OFF = word_set("no_grad inference_mode set_grad_enabled set_grad_mode")
_HARMLESS = re.compile(  # contexts that do not affect gradients
    r"autocast|amp|tqdm|open|progress|profil|timer|device|[Pp]ool|catch_warnings|[Ww]riter"
    r"|stream|record_function|suppress|nullcontext|bar|redirect|join|lock"
)


class Gradients:
    """Answers whether a call may build a graph."""

    def __init__(self, facts: Facts, modes: Modes) -> None:
        self.facts, self.script, self.modes = facts, facts.script, modes
        self._known: dict[ast.AST, bool] = {}

    def off(self, node: ast.AST) -> bool:
        """Whether a node runs without gradients, or might, if that cannot be determined."""
        if node not in self._known:
            self._known[node] = True  # recursion adds nothing
            self._known[node] = self.off_here(node) or self._off_at_callers(node)
        return self._known[node]

    def _off_at_callers(self, node: ast.AST) -> bool:
        function = self.script.function(node)
        if not isinstance(function, FUNCTIONS):
            return not isinstance(function, ast.Module)
        sites = self.facts.values.call_sites(function)
        if not sites:
            return not self.modes.is_entry(function)
        return all(self.off(site) for site in sites)

    def off_here(self, node: ast.AST) -> bool:
        """Whether the function around a node turns gradients off for it."""
        for parent in self.script.source(node).ancestors(node):
            items = parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else []
            if any(self._turns_off(item.context_expr) for item in items):
                return True
            if isinstance(parent, FUNCTIONS) and self.is_decorated(parent):
                return True
        return self._switched_off(node)

    def is_decorated(self, function: Function) -> bool:
        """Whether a decorator turns gradients off in a function."""
        for one in function.decorator_list:
            defined = self.script.definition(one)
            if _mentions(one) or (defined is not None and _mentions(defined)):
                return True
        return False

    def _turns_off(self, context: ast.expr) -> bool:
        if _mentions(context):
            return True
        name = last_name(context)
        origins = self.facts.values.origins(context)
        nodes = [one.node for one in origins if isinstance(one.node, ast.expr)]
        if any(_mentions(node) for node in nodes):
            return True
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        callees = [self.facts.values.callee(call) for call in calls]
        inner = self.facts.values.callee(context) if isinstance(context, ast.Call) else None
        known = [one for one in (*callees, inner) if one is not None]
        if known:
            return any(_mentions(one) for one in known)
        return not any(_HARMLESS.search(word) for word in (name, *map(last_name, nodes)))

    def _switched_off(self, node: ast.AST) -> bool:
        """Whether `torch.set_grad_enabled(False)` was called as a statement before."""
        scope = self.script.function(node)
        for call in self.facts.values.calls("set_grad_enabled"):
            statement = self.script.parent(call)
            if isinstance(statement, ast.Expr):
                home = self.script.function(call)
                earlier = home is scope and start_place(call) < start_place(node)
                if earlier or isinstance(home, ast.Module):
                    return True
        return False


def _mentions(code: ast.AST) -> bool:
    return any(
        isinstance(one, (ast.Name, ast.Attribute)) and last_name(one) in _OFF
        for one in ast.walk(code)
    )
