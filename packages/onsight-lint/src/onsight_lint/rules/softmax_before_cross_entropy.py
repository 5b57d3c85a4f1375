"""Rule on a softmax before cross-entropy, which already includes one."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from onsight_lint.edits import Change, replace_node, show_changed
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.scopes import Binding
from onsight_lint.syntax import (
    FUNCTIONS,
    Function,
    call_owner,
    keyword_value,
    last_name,
    start_position,
    word_set,
)

_CROSS_ENTROPIES = word_set("CrossEntropyLoss LabelSmoothingCrossEntropy SoftTargetCrossEntropy")
_FUNCTIONS = ("softmax", "log_softmax")
_SOFTMAXES = frozenset({*_FUNCTIONS, "Softmax", "LogSoftmax", "Softmax2d"})
_SHAPE_METHODS = word_set("squeeze view reshape float flatten contiguous to unsqueeze permute")
_HEADS = frozenset({"fc", "classifier", "head", "heads"})
_WHY_LOG = (
    "Cross-entropy already includes a log-softmax; a second one changes no result and costs time. "
    "Pass it the raw scores, or use nll_loss."
)
_MAX_DEPTH = 12


@dataclass(frozen=True)
class _Softmax:
    """A softmax in the code."""

    node: ast.AST
    inner: ast.AST | None  # the code without it; None for a layer in a list


def _check(context: Context) -> Iterator[Mistake]:
    """Cross-entropy of the output of a softmax."""
    search, seen = _Search(context), set()
    for node in context.script.nodes(ast.Call):
        if (scores := _scores(context, node)) is not None:
            for softmax in search.last_softmaxes(scores):
                if softmax.node not in seen:
                    seen.add(softmax.node)
                    yield _mistake(context, softmax, is_certain=softmax.node is scores)


RULE = Rule(
    id="softmax-before-cross-entropy",
    title="A softmax before cross-entropy",
    why=(
        "Cross-entropy already includes a log-softmax. A second softmax squeezes all scores into 0 "
        "to 1: gradients become small and the loss cannot come near 0."
    ),
    check=_check,
    pattern="ross_?[eE]ntropy",
)


def _mistake(context: Context, softmax: _Softmax, is_certain: bool) -> Mistake:
    changes = [_removal(context, softmax)]
    fixed = show_changed(context.script, softmax.node, changes)
    name = last_name(softmax.node)
    problem = f"{name} is applied before cross-entropy, which already includes one"
    why = _WHY_LOG if name.lower().startswith("log") else ""
    return Mistake(softmax.node, problem, fixed, why, changes if is_certain else ())


def _removal(context: Context, softmax: _Softmax) -> Change:
    script, node = context.script, softmax.node
    if softmax.inner is not None:
        return replace_node(script, node, script.code(softmax.inner))
    holder = script.parent(node)
    outer = script.parent(holder)
    if isinstance(holder, ast.Tuple) and isinstance(outer, ast.List):
        node, holder = holder, outer  # ("softmax", nn.Softmax()) in an OrderedDict
    layers = holder.args if isinstance(holder, ast.Call) else getattr(holder, "elts", [])
    before = [layer for layer in layers if start_position(layer) < start_position(node)]
    source = script.source(node)
    start = source.end(before[-1]) if before else source.start(node)
    return Change(start, source.end(node), "")


def _scores(context: Context, call: ast.Call) -> ast.expr | None:
    """The scores that are passed to a call of cross-entropy."""
    if context.script.path_of(call.func) != "torch.nn.functional.cross_entropy":
        origins = context.values.origins(call.func)
        names = {
            last_name(item.node.func) if isinstance(item.node, ast.Call) and not item.steps else ""
            for item in origins
        }
        if not names or names - _CROSS_ENTROPIES:
            return None
    return call.args[0] if call.args else keyword_value(call, "input")


def _all_or_none(paths: Iterable[list[_Softmax]]) -> list[_Softmax]:
    """Return the softmaxes of all paths that a value may come by; none if a path has none."""
    softmaxes: list[_Softmax] = []
    for found in paths:
        if not found:
            return []
        softmaxes += found
    return softmaxes


class _Search:
    """Finds the softmaxes that are applied last to a value."""

    def __init__(self, context: Context) -> None:
        self.context, self.script = context, context.script

    def last_softmaxes(self, value: ast.AST, depth: int = _MAX_DEPTH) -> list[_Softmax]:
        """Return the softmaxes that a value certainly results from."""
        if not depth:
            return []
        while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr not in _SHAPE_METHODS or self.script.path_of(value.func):
                break
            value = value.func.value
        if isinstance(value, ast.Name):
            bindings = self.script.scope(value).reaching(value)
            return _all_or_none(self._of_binding(binding, depth - 1) for binding in bindings)
        if isinstance(value, ast.Call):
            return self._of_call(value, depth - 1)
        return []

    def _of_binding(self, binding: Binding, depth: int) -> list[_Softmax]:
        """The softmaxes of an assigned value, or of one element of an unpacked tuple."""
        if binding.kind != "value" or binding.value is None:
            return []
        if not binding.steps:
            return self.last_softmaxes(binding.value, depth)
        match binding.value, binding.steps:
            case ast.Call() as call, (int(index),):
                return self._of_call(call, depth, index)
        return []

    def _of_call(self, call: ast.Call, depth: int, part: int | None = None) -> list[_Softmax]:
        """The softmaxes of a call's return value. part: the element, if that is a tuple."""
        if part is None and (softmax := self._as_softmax(call)) is not None:
            return [softmax]
        function = self.context.values.callee(call)
        if function is None and isinstance(call.func, ast.Name) and call.func.id == "self":
            owners = self.context.values.classes(call.func)  # `self(x)` in a module
            function = self.context.values.method(owners[0], "forward") if owners else None
        if isinstance(function, FUNCTIONS):
            return self._of_function(function, depth, part)
        if isinstance(function, ast.ClassDef):
            return []
        return _all_or_none(
            [] if origin.steps else self._of_network(origin.node, depth, part)
            for origin in self.context.values.origins(call.func)
        )

    def _as_softmax(self, call: ast.Call) -> _Softmax | None:
        """A call of softmax as a function, a module or a method."""
        path = self.script.path_of(call.func)
        is_function = path.startswith("torch.") and last_name(call.func) in _FUNCTIONS
        if is_function or self._is_softmax_module(call.func):
            return _Softmax(call, call.args[0]) if call.args else None
        match call.func:
            case ast.Attribute(value=value, attr="softmax" | "log_softmax") if not path:
                return _Softmax(call, value)
        return None

    def _is_softmax_module(self, function: ast.expr) -> bool:
        """Return whether a function is an nn.Softmax or nn.LogSoftmax."""
        origins = self.context.values.origins(function)
        return bool(origins) and all(
            isinstance(origin.node, ast.Call)
            and self.script.path_of(origin.node.func).startswith("torch.nn.")
            and last_name(origin.node.func) in _SOFTMAXES
            for origin in origins
        )

    def _of_function(self, function: Function, depth: int, part: int | None) -> list[_Softmax]:
        """The softmaxes that a function ends with, if all its returns have one."""
        return _all_or_none(
            self._of_element(value, depth, part)
            for value in self.context.values.returns(function)
            if not self._is_in_evaluation_only(value)
        )

    def _of_element(self, value: ast.expr, depth: int, part: int | None) -> list[_Softmax]:
        """The softmaxes of a value or, if part is given, of an element of a tuple."""
        if part is None:
            return self.last_softmaxes(value, depth)
        elements = value.elts if isinstance(value, ast.Tuple) else []
        is_inside = -len(elements) <= part < len(elements)
        return self.last_softmaxes(elements[part], depth) if is_inside else []

    def _is_in_evaluation_only(self, returned: ast.expr) -> bool:
        """Return whether a value is only returned in evaluation mode."""
        child: ast.AST = returned
        for parent in self.script.ancestors(returned):
            if isinstance(parent, ast.If):
                test = parent.test
                is_negated = isinstance(test, ast.UnaryOp) and last_name(test.operand) == "training"
                is_plain = last_name(test) == "training"
                is_in_body = child in parent.body
                if (is_negated and is_in_body) or (is_plain and not is_in_body):
                    return True
            child = parent
        return False

    def _of_network(self, node: ast.AST, depth: int, part: int | None) -> list[_Softmax]:
        """The softmax that a network ends with, by the call that creates it."""
        if not isinstance(node, ast.Call) or not depth:
            return []
        owner = self.script.definition(node.func)
        if self.context.kinds.is_module_class(owner):
            forward = self.context.values.method(owner, "forward")
            return self._of_function(forward, depth, part) if forward is not None else []
        if last_name(node.func) == "Sequential" and part is None:
            return self._of_layers(node.args, depth)
        return self._of_head(node, depth) if part is None else []

    def _of_layers(self, layers: Sequence[ast.expr], depth: int) -> list[_Softmax]:
        """The softmax at the end of nn.Sequential."""
        last = layers[-1] if layers else None
        if isinstance(last, ast.Call) and last_name(last.func) == "OrderedDict" and last.args:
            pairs = last.args[0]
            if isinstance(pairs, ast.List) and pairs.elts:
                pair = pairs.elts[-1]
                last = pair.elts[-1] if isinstance(pair, ast.Tuple) and pair.elts else None
        if isinstance(last, ast.Starred):
            last = self._last_of_list(last.value)
        if isinstance(last, ast.Call) and last_name(last.func) in ("Softmax", "LogSoftmax"):
            return [_Softmax(last, None)]
        return self._of_network(last, depth - 1, None) if last is not None else []

    def _last_of_list(self, name: ast.expr) -> ast.expr | None:
        """The last layer of an unpacked list: written in it, or certainly appended to it."""
        if not isinstance(name, ast.Name):
            return None
        scopes = self.script.scope(name)
        appends = [
            call
            for call in self.context.values.calls("append")
            if isinstance(owner := call_owner(call), ast.Name)
            if owner.id == name.id and start_position(call) < start_position(name)
            if self.script.function(call) is self.script.function(name)
        ]
        if appends:
            last = max(appends, key=start_position)
            return last.args[0] if last.args and scopes.has_run(last, name) else None
        for binding in scopes.reaching(name):
            if isinstance(binding.value, ast.List) and binding.value.elts:
                return binding.value.elts[-1]
        return None

    def _of_head(self, created: ast.Call, depth: int) -> list[_Softmax]:
        """The softmax at the end of a new head: `model.fc = nn.Sequential(...)`."""
        for scopes in self.script.scopes.values():
            for member in scopes.members:
                if member.key in _HEADS and not member.steps:
                    owners = self.context.values.origins(member.receiver)
                    if any(origin.node is created for origin in owners):
                        return self._of_network(member.value, depth - 1, None)
        return []
