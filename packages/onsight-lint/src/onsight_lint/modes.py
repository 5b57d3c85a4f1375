"""The state in which code runs: training or evaluation mode, and gradients on or off."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from onsight_lint.facts import Facts
from onsight_lint.loops import called_functions
from onsight_lint.source import SourceFile
from onsight_lint.syntax import (
    FUNCTIONS,
    Function,
    argument_values,
    call_owner,
    is_main_guard,
    last_name,
    own_nodes,
    start_position,
    word_set,
)
from onsight_lint.values import Origin

Mode = Literal["train", "eval", "either"]

_EVALUATION_CONTEXT = re.compile(r"eval|inference|test_mode")
_NON_LAUNCHERS = word_set(  # decorators that do not run the function themselves
    "no_grad inference_mode set_grad_enabled compile wraps jit autocast contextmanager cache "
    "lru_cache overload deprecated profile timer"
)
_BRANCHES = (ast.If, ast.ExceptHandler, ast.IfExp, ast.Match, ast.FunctionDef, ast.Lambda)

_GRADIENT_SWITCHES = word_set("no_grad inference_mode set_grad_enabled set_grad_mode")
_HARMLESS_CONTEXT = re.compile(  # contexts that do not affect gradients
    r"autocast|amp|tqdm|open|progress|profil|timer|device|[Pp]ool|catch_warnings|[Ww]riter"
    r"|stream|record_function|suppress|nullcontext|bar|redirect|join|lock"
)

_MODE_DEPENDENT = re.compile(
    r"BatchNorm|batch_norm|[Dd]ropout|DropPath|drop_path|StochasticDepth|stochastic_depth"
    r"|Transformer(En|De)coder|torch\.nn\.Transformer$"
)
_MODEL_LIBRARIES = ("torchvision.models", "timm.", "torch.hub.", "transformers.")


@dataclass(frozen=True, eq=False)
class ModeCall:
    """A call that sets a mode."""

    call: ast.Call
    mode: Mode | None
    function: Function | None = None  # the called function, if it may set one inside


class Modes:
    """Follows `.train()` and `.eval()` through a script."""

    def __init__(self, facts: Facts) -> None:
        self.facts, self.script = facts, facts.script
        self._calls: dict[ast.AST, list[ModeCall]] = {}
        self._left: dict[Function, Mode | None] = {}
        self._modes: dict[tuple[ast.AST, str], Mode | None] = {}

    def at(self, node: ast.AST, network: str) -> Mode | None:
        """Return the mode of a network when a node runs; None if the callers are unknown.

        It is "train" if any path to the node leaves it in training mode, the mode of a new network.
        """
        key = node, network
        if key not in self._modes:
            self._modes[key] = None  # recursion adds nothing
            self._modes[key] = self.set_before(node, network) or self._at_callers(node, network)
        return self._modes[key]

    def set_before(self, node: ast.AST, network: str) -> Mode | None:
        """Return the mode that was last set before a node, in the same function."""
        scope, source = self.script.function(node), self.script.source(node)
        if self._in_evaluation_context(node):
            return "eval"
        position, may_train = start_position(node), False
        for event in reversed(self.calls_in(scope)):
            if start_position(event.call) >= position or source.are_alternatives(event.call, node):
                continue
            mode = self._mode_of(event, network)
            if mode in ("eval", "either"):
                return "eval"
            if mode == "train":
                if self._has_run(event.call, node):
                    return "train"
                may_train = True
        return "train" if may_train else None

    def left_by(self, function: Function) -> Mode | None:
        """Return the mode in which a function leaves a network.

        For a context manager, it is the mode while it yields.
        """
        if function not in self._left:
            self._left[function] = None  # recursion adds nothing
            self._left[function] = self._find_left(function)
        return self._left[function]

    def calls_in(self, scope: ast.AST) -> list[ModeCall]:
        """Return the calls in a function that set modes, in source order."""
        if scope not in self._calls:
            calls = [node for node in own_nodes(scope) if isinstance(node, ast.Call)]
            events = [event for call in calls if (event := _mode_call(self.facts, call))]
            self._calls[scope] = sorted(events, key=lambda event: start_position(event.call))
        return self._calls[scope]

    def calls_setting(self, mode: Mode, loop: ast.AST) -> list[ModeCall]:
        """Return the calls in a loop that set a mode, directly or indirectly."""
        inside, events = set(own_nodes(loop)), self.calls_in(self.script.function(loop))
        modes: set[Mode] = {mode, "either"} if mode == "train" else {mode}
        return [event for event in events if event.call in inside and modes & self._all(event)]

    def name_at_call(self, site: ast.Call, function: Function, network: str) -> str:
        """Return the name at a call site of what is passed for a parameter."""
        value = self.facts.values.argument(site, function, network)
        return (last_name(value) if value is not None else "") or network

    def is_entry_point(self, function: Function) -> bool:
        """Return whether a function that nothing calls may run, by a decorator or a launcher."""
        decorators = {last_name(decorator) for decorator in function.decorator_list}
        is_method = isinstance(self.script.parent(function), ast.ClassDef)
        if decorators - _NON_LAUNCHERS and not is_method:
            return True
        return function.name == "main" or any(
            isinstance(node, ast.Name) and self.script.definition(node) is function
            for source in self.script.sources
            for node in source.by_key[function.name]
        )

    def _at_callers(self, node: ast.AST, network: str) -> Mode | None:
        function = self.script.function(node)
        if not isinstance(function, FUNCTIONS):
            return "train" if isinstance(function, ast.Module) else None
        sites = self.facts.values.call_sites(function)
        if not sites:
            return "train" if self.is_entry_point(function) else None
        modes = {self.at(site, self.name_at_call(site, function, network)) for site in sites}
        return "train" if "train" in modes else "eval" if "eval" in modes else None

    def _find_left(self, function: Function) -> Mode | None:
        yields = [node for node in own_nodes(function) if isinstance(node, ast.Yield)]
        end = start_position(yields[0]) if yields else (1 << 30, 0)
        possible: Mode | None = None
        for event in reversed(self.calls_in(function)):
            mode = event.mode if event.function is None else self.left_by(event.function)
            if mode is None or start_position(event.call) >= end:
                continue
            if mode != "train" or self._has_run(event.call, function.body[-1]):
                return mode
            possible = mode
        return possible

    def _all(self, event: ModeCall, seen: set[ast.AST] | None = None) -> set[Mode]:
        """Every mode that a call sets, directly or indirectly."""
        seen = set() if seen is None else seen
        if event.function is None:
            return {event.mode} if event.mode else set()
        if event.function in seen:
            return set()
        seen.add(event.function)
        inner = (self._all(call, seen) for call in self.calls_in(event.function))
        return {mode for modes in inner for mode in modes}

    def _mode_of(self, event: ModeCall, network: str) -> Mode | None:
        """The mode that a call sets for a network."""
        if event.function is not None:
            mode = self.left_by(event.function)
            if mode == "train" and not _may_reach(event.call, network):
                return None
            return mode
        owner = call_owner(event.call) or event.call
        if event.mode == "train" and last_name(owner) not in (network, "module", "self", "m", ""):
            return None
        return event.mode

    def _has_run(self, call: ast.Call, node: ast.AST) -> bool:
        """Return whether a call has certainly been made before a node; loops count as entered."""
        around = {node, *self.script.ancestors(node)}
        for parent in self.script.ancestors(call):
            if parent in around:
                return True
            if isinstance(parent, _BRANCHES) and not is_main_guard(parent):
                return False
        return True

    def _in_evaluation_context(self, node: ast.AST) -> bool:
        """Return whether a node is inside a `with` whose name suggests evaluation."""
        names = [
            last_name(item.context_expr)
            for parent in self.script.ancestors(node)
            if isinstance(parent, (ast.With, ast.AsyncWith))
            for item in parent.items
        ]
        return any(_EVALUATION_CONTEXT.search(n) and n != "inference_mode" for n in names)


class Gradients:
    """Determines whether a call may build a graph."""

    def __init__(self, facts: Facts, modes: Modes) -> None:
        self.facts, self.script, self.modes = facts, facts.script, modes
        self._off: dict[ast.AST, bool] = {}

    def are_off(self, node: ast.AST) -> bool:
        """Return whether a node runs without gradients, or might, if that is not certain."""
        if node not in self._off:
            self._off[node] = True  # recursion adds nothing
            self._off[node] = self.are_off_here(node) or self._off_at_callers(node)
        return self._off[node]

    def are_off_here(self, node: ast.AST) -> bool:
        """Return whether the function around a node turns gradients off for it."""
        for parent in self.script.ancestors(node):
            items = parent.items if isinstance(parent, (ast.With, ast.AsyncWith)) else []
            if any(self._turns_off(item.context_expr) for item in items):
                return True
            if isinstance(parent, FUNCTIONS) and self.are_off_by_decorator(parent):
                return True
        return self._switched_off(node)

    def are_off_by_decorator(self, function: Function) -> bool:
        """Return whether a decorator turns gradients off in a function."""
        for decorator in function.decorator_list:
            definition = self.script.definition(decorator)
            if _names_gradient_switch(decorator) or _names_gradient_switch(definition):
                return True
        return False

    def _off_at_callers(self, node: ast.AST) -> bool:
        function = self.script.function(node)
        if not isinstance(function, FUNCTIONS):
            return not isinstance(function, ast.Module)
        sites = self.facts.values.call_sites(function)
        if not sites:
            is_entered = self.modes.is_entry_point(function) or self._also_trains(function, node)
            return not (is_entered or self.script.source(node) in self._sources_before_no_grad)
        return all(self.are_off(site) for site in sites)

    def _also_trains(self, function: Function, node: ast.AST) -> bool:
        """Return whether a function also computes gradients, so it is called with them enabled."""
        source = self.script.source(node)
        calls = [part for part in own_nodes(function) if isinstance(part, ast.Call)]
        return any(
            last_name(part) == "backward"
            for call in calls
            if not source.are_alternatives(call, node)
            for scope in (call, *called_functions(self.facts, call))
            for part in (scope, *own_nodes(scope))
        )

    @cached_property
    def _sources_before_no_grad(self) -> set[SourceFile]:
        """The files for PyTorch 0.3, in which no caller can turn gradients off."""
        if any(_names_gradient_switch(source.tree) for source in self.script.sources):
            return set()
        return {self.script.source(call) for call in self.facts.values.calls("Variable")}

    def _turns_off(self, context: ast.expr) -> bool:
        """Return whether a `with` turns gradients off, or is unknown and might."""
        values = self.facts.values
        nodes = [context, *(origin.node for origin in values.origins(context))]
        expressions = [node for node in nodes if isinstance(node, ast.expr)]
        if any(map(_names_gradient_switch, expressions)):
            return True
        calls = [node for node in expressions if isinstance(node, ast.Call)]
        callees = [callee for call in calls if (callee := values.callee(call)) is not None]
        if callees:
            return any(map(_names_gradient_switch, callees))
        return not any(map(_HARMLESS_CONTEXT.search, map(last_name, expressions)))

    def _switched_off(self, node: ast.AST) -> bool:
        """Return whether `torch.set_grad_enabled(...)` was called as a statement before."""
        scope = self.script.function(node)
        for call in self.facts.values.calls("set_grad_enabled"):
            if isinstance(self.script.parent(call), ast.Expr):
                home = self.script.function(call)
                is_earlier = home is scope and start_position(call) < start_position(node)
                if is_earlier or isinstance(home, ast.Module):
                    return True
        return False


def depends_on_mode(facts: Facts, network: ast.expr) -> bool:
    """Return whether a network may have layers that behave differently in training.

    These are dropout, batch norm and the like. False only if all its layers are known.
    """
    return any(_may_depend(facts, origin) for origin in facts.values.origins(network))


def _may_depend(facts: Facts, origin: Origin) -> bool:
    node = origin.node
    if not isinstance(node, ast.Call):
        return True  # an argument or an attribute whose creation is not visible
    path = facts.script.path_of(node.func)
    if facts.script.definition(node.func) is not None:
        return _names_dependent_layer(facts, node)
    if path.startswith("torch.nn."):
        is_open = any(isinstance(layer, (ast.Starred, ast.Name)) for layer in node.args)
        return _names_dependent_layer(facts, facts.script.function(node) if is_open else node)
    return path != "torch.jit.load"


def _names_dependent_layer(facts: Facts, node: ast.AST) -> bool:
    """Return whether code names such a layer, itself or in a class or function it refers to."""
    seen: set[ast.AST] = set()
    waiting = [node]
    while waiting:
        code = waiting.pop()
        if code in seen:
            continue
        seen.add(code)
        for part in ast.walk(code):
            if isinstance(part, ast.keyword) and part.arg == "dropout":
                is_zero = isinstance(part.value, ast.Constant) and not part.value.value
                if not is_zero:
                    return True
            if isinstance(part, (ast.Name, ast.Attribute)):
                path = facts.script.path_of(part) or last_name(part)
                if _MODE_DEPENDENT.search(path) or path.startswith(_MODEL_LIBRARIES):
                    return True
                definition = facts.script.definition(part)
                if definition is not None:
                    waiting.append(definition)
    return False


def _names_gradient_switch(code: ast.AST | None) -> bool:
    return code is not None and any(
        isinstance(node, (ast.Name, ast.Attribute)) and last_name(node) in _GRADIENT_SWITCHES
        for node in ast.walk(code)
    )


def _mode_call(facts: Facts, call: ast.Call) -> ModeCall | None:
    """The effect of a call on modes; None if it cannot set one."""
    callee = facts.values.callee(call)
    if isinstance(callee, ast.ClassDef):
        callee = facts.values.method(callee, "__init__")
    if isinstance(callee, FUNCTIONS):
        owner = facts.script.parent(callee)
        if callee.name not in ("train", "eval") or not facts.kinds.is_module_class(owner):
            return ModeCall(call, None, callee)
    if not isinstance(call.func, ast.Attribute) or facts.script.path_of(call.func):
        return None
    if call.func.attr == "eval" and not call.args:
        return ModeCall(call, "eval")
    values = argument_values(call)
    if call.func.attr == "train" and len(values) <= 1:
        if not values:
            return ModeCall(call, "train")
        flag = values[0].value if isinstance(values[0], ast.Constant) else None
        return ModeCall(call, "train" if flag is True else "eval" if flag is False else "either")
    return None


def _may_reach(call: ast.Call, network: str) -> bool:
    """Return whether a call may change a network: it names it, is a method, or has no arguments."""
    values = argument_values(call)
    names = {last_name(part) for value in values for part in ast.walk(value)}
    return network in names or isinstance(call.func, ast.Attribute) or not values
