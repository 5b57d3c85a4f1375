"""Whether a network is in training or evaluation mode at some place in a script."""

import ast
import re
from dataclasses import dataclass
from typing import Literal

from onsight_lint.branches import apart
from onsight_lint.calls import last_name
from onsight_lint.facts import Facts
from onsight_lint.reachable import is_main
from onsight_lint.source import FUNCTIONS, Function, own_nodes, start_place
from onsight_lint.vocabulary import word_set

Mode = Literal["train", "eval", "either"]

_EVALUATES = re.compile(r"eval|inference|test_mode")
_NO_LAUNCHERS = word_set(  # decorators that do not run the function themselves
    "no_grad inference_mode set_grad_enabled compile wraps jit autocast contextmanager cache "
    "lru_cache overload deprecated profile timer"
)
_BRANCHES = (ast.If, ast.ExceptHandler, ast.IfExp, ast.Match, ast.FunctionDef, ast.Lambda)


@dataclass(frozen=True, eq=False)
class Event:
    """A call that sets a mode; function: the called function, if it may do so inside."""

    call: ast.Call
    mode: Mode | None
    function: Function | None = None


class Modes:
    """Follows `.train()` and `.eval()` through a script."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.script = facts, facts.script
        self._events: dict[ast.AST, list[Event]] = {}
        self._last: dict[Function, Mode | None] = {}
        self._modes: dict[tuple[ast.AST, str], Mode | None] = {}

    def at(self, node: ast.AST, network: str) -> Mode | None:
        """The mode of a network when a node runs; None if the callers are unknown.

        "train" if any path to the node leaves it in training mode, the mode of a new network.
        """
        key = node, network
        if key not in self._modes:
            self._modes[key] = None  # recursion adds nothing
            self._modes[key] = self.before(node, network) or self._from_callers(node, network)
        return self._modes[key]

    def _from_callers(self, node: ast.AST, network: str) -> Mode | None:
        function = self.script.function(node)
        if not isinstance(function, FUNCTIONS):
            return "train" if isinstance(function, ast.Module) else None
        sites = self.facts.values.call_sites(function)
        if not sites:
            return "train" if self.is_entry(function) else None
        modes = {self.at(site, self.name_at_call(site, function, network)) for site in sites}
        return "train" if "train" in modes else "eval" if "eval" in modes else None

    def name_at_call(self, site: ast.Call, function: Function, network: str) -> str:
        """The name at a call site of what is passed for a parameter."""
        value = self.facts.values.argument(site, function, network)
        return (last_name(value) if value is not None else "") or network

    def before(self, node: ast.AST, network: str) -> Mode | None:
        """The mode that was last set before a node, in the same function."""
        scope, source = self.script.function(node), self.script.source(node)
        if self._in_context(node):
            return "eval"
        place, maybe = start_place(node), False
        for event in reversed(self.events(scope)):
            if start_place(event.call) >= place or apart(source, event.call, node):
                continue
            mode = self._mode(event, network)
            if mode in ("eval", "either"):
                return "eval"
            if mode == "train":
                if self._certain(event.call, node):
                    return "train"
                maybe = True
        return "train" if maybe else None

    def events(self, scope: ast.AST) -> list[Event]:
        """The calls in a function that set modes, in source order."""
        if scope not in self._events:
            found = [
                _event(self.facts, one) for one in own_nodes(scope) if isinstance(one, ast.Call)
            ]
            events = [event for event in found if event is not None]
            self._events[scope] = sorted(events, key=lambda event: start_place(event.call))
        return self._events[scope]

    def sets(self, node: ast.AST, mode: Mode) -> list[Event]:
        """The calls in a piece of code that set a mode, directly or indirectly."""
        inside = set(own_nodes(node))
        events = self.events(self.script.function(node) if not _is_scope(node) else node)
        wanted = {mode, "either"} if mode == "train" else {mode}
        return [one for one in events if one.call in inside and wanted & self._all(one, set())]

    def is_entry(self, function: Function) -> bool:
        """Whether a function without calls runs all the same, by a decorator or a launcher."""
        decorators = {last_name(one) for one in function.decorator_list} - _NO_LAUNCHERS
        if decorators and not isinstance(self.script.parent(function), ast.ClassDef):
            return True
        return function.name == "main" or any(
            node.id == function.name
            and isinstance(node.ctx, ast.Load)
            and self.script.definition(node) is function
            for node in self.script.nodes(ast.Name)
        )

    def _all(self, event: Event, seen: set[ast.AST]) -> set[Mode]:
        """Every mode that an event sets, directly or indirectly."""
        if event.function is None:
            return {event.mode} if event.mode else set()
        if event.function in seen:
            return set()
        seen.add(event.function)
        inner = (self._all(one, seen) for one in self.events(event.function))
        return {mode for modes in inner for mode in modes}

    def _mode(self, event: Event, network: str) -> Mode | None:
        if event.function is not None:
            mode = self.left(event.function)
            if mode == "train" and not _may_change(event.call, network):
                return None
            return mode
        owner = event.call.func.value if isinstance(event.call.func, ast.Attribute) else event.call
        if event.mode == "train" and last_name(owner) not in (network, "module", "self", "m", ""):
            return None
        return event.mode

    def left(self, function: Function) -> Mode | None:
        """The mode in which a function leaves a network, or a context manager while it yields."""
        if function not in self._last:
            self._last[function] = None
            yields = [one for one in own_nodes(function) if isinstance(one, ast.Yield)]
            until = start_place(yields[0]) if yields else (1 << 30, 0)
            maybe: Mode | None = None
            for event in reversed(self.events(function)):
                mode = event.mode if event.function is None else self.left(event.function)
                if mode is None or start_place(event.call) >= until:
                    continue
                if mode != "train" or self._certain(event.call, function.body[-1]):
                    self._last[function] = mode
                    return mode
                maybe = mode
            self._last[function] = maybe
        return self._last[function]

    def _certain(self, call: ast.Call, node: ast.AST) -> bool:
        """Whether a call has certainly been made before a node; loops count as entered."""
        source = self.script.source(call)
        around = {node, *source.ancestors(node)}
        for parent in source.ancestors(call):
            if parent in around:
                return True
            if isinstance(parent, _BRANCHES) and not is_main(parent):
                return False
        return True

    def _in_context(self, node: ast.AST) -> bool:
        """Whether a node is inside a `with` whose name suggests evaluation."""
        for parent in self.script.source(node).ancestors(node):
            if isinstance(parent, (ast.With, ast.AsyncWith)):
                names = (last_name(item.context_expr) for item in parent.items)
                if any(_EVALUATES.search(name) and name != "inference_mode" for name in names):
                    return True
        return False


def _event(facts: Facts, call: ast.Call) -> Event | None:
    callee = facts.values.callee(call)
    if isinstance(callee, ast.ClassDef):
        callee = facts.values.method(callee, "__init__")
    if isinstance(callee, FUNCTIONS) and not _of_module(facts, callee):
        return Event(call, None, callee)
    if not isinstance(call.func, ast.Attribute) or facts.script.path_of(call.func):
        return None
    if call.func.attr == "eval" and not call.args:
        return Event(call, "eval")
    if call.func.attr == "train" and len(call.args) + len(call.keywords) <= 1:
        given = [*call.args, *(one.value for one in call.keywords)]
        plain = not given or (isinstance(given[0], ast.Constant) and given[0].value is True)
        off = given and isinstance(given[0], ast.Constant) and given[0].value is False
        return Event(call, "train" if plain else "eval" if off else "either")
    return None


def _of_module(facts: Facts, function: Function) -> bool:
    owner = facts.script.parent(function)
    if not isinstance(owner, ast.ClassDef) or function.name not in ("train", "eval"):
        return False
    return facts.kinds.is_module_class(owner)


def _may_change(call: ast.Call, network: str) -> bool:
    """Whether a call may change a network: it gets it, is a method, or has no arguments."""
    given = [*call.args, *(one.value for one in call.keywords)]
    names = {last_name(one) for value in given for one in ast.walk(value)}
    return network in names or isinstance(call.func, ast.Attribute) or not given


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, (ast.Module, *FUNCTIONS))
