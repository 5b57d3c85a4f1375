"""Data flow: trace values back to their origins through names, attributes, calls and returns."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from onsight_lint.scopes import ANY, EACH, Binding, Step
from onsight_lint.script import Definition, Script
from onsight_lint.syntax import (
    FUNCTIONS,
    Function,
    call_owner,
    default_value,
    key_of,
    keyword_value,
    last_name,
    own_nodes,
    word_set,
)

Steps = tuple[Step, ...]

_RETURN_SELF = word_set(  # methods that return the object they are called on, or a copy
    "to cuda cpu half float double bfloat16 eval train requires_grad_ xpu share_memory_ compile"
)
_RETURN_FIRST = word_set(  # functions that return their first argument, or a wrapper of it
    "compile DataParallel DistributedDataParallel DDP FullyShardedDataParallel FSDP deepcopy "
    "script trace convert_sync_batchnorm tqdm trange track iter list tuple islice log_every "
    "prepare prepare_model prepare_data_loader progress_bar setup_dataloaders auto_model "
    "auto_dataloader MpDeviceLoader freeze optimize_for_inference OrderedDict"
)
_MAX_DEPTH = 40  # nested calls of Values.origins
_MAX_VISITS = 2000  # expressions visited in one search
_MAX_CALL_SITES = 100  # of a function, that pass a parameter
_MAX_STEPS = 6  # nested levels of tuples, dicts and loops


@dataclass(frozen=True)
class Origin:
    """An expression or parameter where the trace of a value ends."""

    node: ast.AST
    steps: Steps = ()  # path from the node to the part that is traced, such as an index


class Values:
    """Traces values through the files of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._origins: dict[tuple[ast.AST, Steps], list[Origin]] = {}
        self._depth = self._visits = 0  # of the current search
        self._is_cut_short = False  # whether the current search has reached a limit
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._call_sites: dict[Function, list[ast.Call]] = {}
        self._returned: dict[Function, list[ast.expr]] = {}
        for node in script.nodes(ast.Call):
            self._calls[last_name(node.func)].append(node)

    def origins(self, expression: ast.AST, steps: Steps = ()) -> list[Origin]:
        """Return the possible origins of an expression, or of the part of it that steps lead to.

        Limits on depth and work bound the search; origins beyond them are left out.
        """
        key = expression, steps
        if key in self._origins:
            return self._origins[key]
        if len(steps) > _MAX_STEPS:
            return []
        if self._depth == 0:
            self._visits, self._is_cut_short = 0, False
        self._visits += 1
        if self._depth > _MAX_DEPTH or self._visits > _MAX_VISITS:
            self._is_cut_short = True
            return []
        self._origins[key] = []  # a value that depends on itself adds no origins
        self._depth += 1
        try:
            followed = self._follow(expression, steps)
        finally:
            self._depth -= 1
            del self._origins[key]
        origins = [Origin(expression, steps)] if followed is None else list(dict.fromkeys(followed))
        if not self._is_cut_short or self._depth == 0:  # a new search may get further
            self._origins[key] = origins
        return origins

    def calls(self, name: str) -> list[ast.Call]:
        """Return all calls of functions and methods of this name."""
        return self._calls[name]

    def callee(self, call: ast.Call) -> Definition | None:
        """Return the function, method or class that a call refers to, if the script defines it."""
        definition = self.script.definition(call.func)
        if definition is not None or not isinstance(call.func, ast.Attribute):
            return definition
        owners = self.classes(call.func.value)
        methods = [self.method(owner, call.func.attr) for owner in owners]
        return next((method for method in methods if method is not None), None)

    def call_sites(self, function: Function) -> list[ast.Call]:
        """Return the calls of a function or method; for `__init__`, of its class."""
        if function in self._call_sites:
            return self._call_sites[function]
        self._call_sites[function] = []  # ends recursion
        target: Definition = function
        owner = self.script.parent(function)
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            target = owner
        sites = [call for call in self._calls[target.name] if self.callee(call) is target]
        self._call_sites[function] = sites
        if self._depth and self._is_cut_short:
            del self._call_sites[function]
        return sites

    def argument(self, call: ast.Call, function: Function, name: str) -> ast.expr | None:
        """Return the argument that a call passes for a parameter, or the parameter's default.

        The result is None if there is neither, or if `*` or `**` makes the argument unknown.
        """
        if (value := keyword_value(call, name)) is not None:
            return value
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        if name in names:
            index = names.index(name) - self._bound_parameters(call, function)
            if 0 <= index < len(call.args):
                is_unknown = _has_star(call.args[: index + 1])
                return None if is_unknown else call.args[index]
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return default_value(function, name)

    def returns(self, function: Function) -> list[ast.expr]:
        """Return the expressions in a function's return statements; none for a generator."""
        if function not in self._returned:
            nodes = list(own_nodes(function))
            values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
            yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes)
            self._returned[function] = [] if yields else values
        return self._returned[function]

    def bases(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """Return the direct base classes that the script defines."""
        definitions = (self.script.definition(base) for base in owner.bases)
        return [
            base for base in definitions if isinstance(base, ast.ClassDef) and base is not owner
        ]

    def lineage(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """Return a class and all its ancestors that the script defines."""
        lineage = [owner]
        for ancestor in lineage:  # grows while it is iterated
            lineage.extend(base for base in self.bases(ancestor) if base not in lineage)
        return lineage

    def base_paths(self, owner: ast.ClassDef) -> list[str]:
        """Return the full names of the bases of a class and of its ancestors."""
        bases = (base for ancestor in self.lineage(owner) for base in ancestor.bases)
        return [self.script.path_of(base) for base in bases]

    def method(self, owner: ast.ClassDef, name: str) -> Function | None:
        """Return a method that a class defines or inherits."""
        for ancestor in self.lineage(owner):
            for node in ancestor.body:
                if isinstance(node, FUNCTIONS) and node.name == name:
                    return node
        return None

    def classes(self, expression: ast.AST) -> list[ast.ClassDef]:
        """Return the script's classes that a value may be an instance of."""
        if isinstance(expression, ast.Name) and expression.id in ("self", "cls"):
            owner = self.script.enclosing_class(expression)
            return [owner] if owner else []
        if isinstance(expression, ast.Call) and last_name(expression.func) == "super":
            owner = self.script.enclosing_class(expression)
            return self.bases(owner) if owner else []
        nodes = (origin.node for origin in self.origins(expression) if not origin.steps)
        calls = (node for node in nodes if isinstance(node, ast.Call))
        definitions = (self.script.definition(call.func) for call in calls)
        return [owner for owner in definitions if isinstance(owner, ast.ClassDef)]

    def attribute_values(self, expression: ast.Attribute) -> list[tuple[ast.expr, Steps]]:
        """Return the values assigned to an attribute in its class or the ancestors of the class.

        Each value has the steps to the part that is assigned.
        """
        lineages = [self.lineage(owner) for owner in self.classes(expression.value)]
        values: list[tuple[ast.expr, Steps]] = []
        for owner in dict.fromkeys(chain.from_iterable(lineages)):
            for member in self.script.scope(owner).attributes.get((owner, expression.attr), []):
                values.append((member.value, member.steps))
            for binding in self.script.scope(owner).tables[owner].get(expression.attr, []):
                if binding.kind == "value" and binding.value is not None:
                    values.append((binding.value, binding.steps))
        return values

    def _bound_parameters(self, call: ast.Call, function: Function) -> int:
        """Return how many parameters (self or cls: 0 or 1) the call does not pass itself."""
        if not isinstance(self.script.parent(function), ast.ClassDef):
            return 0
        decorators = {last_name(decorator) for decorator in function.decorator_list}
        if "staticmethod" in decorators:
            return 0
        is_on_class = isinstance(call.func, ast.Attribute) and isinstance(
            self.script.definition(call.func.value), ast.ClassDef
        )
        return 0 if is_on_class and "classmethod" not in decorators else 1

    def _follow(self, expression: ast.AST, steps: Steps) -> list[Origin] | None:
        """Return the origins of what an expression is computed from.

        The result is None if the expression is an origin itself. The same holds for all methods
        called `_follow_...`.
        """
        match expression:
            case ast.Name():
                return self._follow_name(expression, steps)
            case ast.Attribute():
                return self._follow_attribute(expression, steps)
            case ast.Call():
                return self._follow_call(expression, steps)
            case ast.Subscript(value=value, slice=key) if not isinstance(key, ast.Slice):
                return self._follow_item(value, key, steps)
            case ast.IfExp(body=body, orelse=other):
                return [*self.origins(body, steps), *self.origins(other, steps)]
            case ast.BoolOp(values=values):
                return [origin for value in values for origin in self.origins(value, steps)]
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                return self.origins(value, steps)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if steps:
                return self._follow_elements([*parts, *self._appended(expression)], steps)
            case ast.Dict() if steps and steps[0] != EACH:
                return self._follow_dict(expression, steps)
            case ast.DictComp(value=value) if steps and steps[0] != EACH:
                return self.origins(value, steps[1:])
            case ast.ListComp(elt=part) | ast.GeneratorExp(elt=part) if steps:
                return self.origins(part, steps[1:])
        return None

    def _follow_name(self, name: ast.Name, steps: Steps) -> list[Origin] | None:
        bindings = self.script.scope(name).reaching(name)
        if not bindings:
            return None
        origins = self._follow_bindings(bindings, steps)
        items = self._assigned_items(name, steps)
        return None if origins is None and not items else [*(origins or []), *items]

    def _follow_bindings(self, bindings: list[Binding], steps: Steps) -> list[Origin] | None:
        """Return the origins of all bindings that can be followed; None if none can be."""
        followed = [self._follow_binding(binding, steps) for binding in bindings]
        known = [origins for origins in followed if origins is not None]
        return list(chain.from_iterable(known)) if known else None

    def _follow_binding(self, binding: Binding, steps: Steps) -> list[Origin] | None:
        if binding.kind == "value" and binding.value is not None:
            return self.origins(binding.value, binding.steps + steps)
        if binding.kind == "parameter" and isinstance(binding.node, ast.arg):
            return self._follow_parameter(binding.node, steps)
        if binding.kind == "import":
            return self._follow_exported(binding.path, steps)
        return None

    def _follow_exported(self, path: str, steps: Steps) -> list[Origin] | None:
        """Return the origins of a variable in a module of the script, by its full name."""
        bindings = [item for item in self.script.exported(path) if item.kind == "value"]
        return self._follow_bindings(bindings, steps)

    def _follow_parameter(self, node: ast.arg, steps: Steps) -> list[Origin]:
        function = self.script.parent(self.script.parent(node))
        origins: list[Origin] = []
        if isinstance(function, FUNCTIONS):
            for call in self.call_sites(function)[:_MAX_CALL_SITES]:
                value = self.argument(call, function, node.arg)
                if value is not None:
                    origins.extend(self.origins(value, steps))
            if not origins and steps[:1] == (EACH,):
                origins = self._follow_outputs(function, node, steps[1:])
        return origins or [Origin(node, steps)]

    def _follow_outputs(self, function: Function, node: ast.arg, steps: Steps) -> list[Origin]:
        """Return what Lightning collects for `validation_epoch_end`: what each step returns."""
        phase, _, hook = function.name.partition("_")
        owner = self.script.parent(function)
        if hook != "epoch_end" or not isinstance(owner, ast.ClassDef):
            return []
        step = self.method(owner, f"{phase}_step") if node in function.args.args[1:2] else None
        return (self._follow_returns(step, steps) if step is not None else None) or []

    def _follow_attribute(self, expression: ast.Attribute, steps: Steps) -> list[Origin] | None:
        if expression.attr == "module":  # the network inside DataParallel and similar wrappers
            return self.origins(expression.value, steps)
        path = self.script.path_of(expression)
        if path:
            return self._follow_exported(path, steps) or None
        values = self.attribute_values(expression)
        return [
            origin
            for value, value_steps in values
            for origin in self.origins(value, value_steps + steps)
        ] or None

    def _follow_item(self, value: ast.expr, key: ast.expr, steps: Steps) -> list[Origin] | None:
        step: Step = ANY
        if isinstance(key, ast.Constant) and isinstance(key.value, (int, str)):
            step = key.value
        origins = self.origins(value, (step, *steps))
        if len(origins) == 1 and origins[0].node is value:
            return None
        return origins

    def _follow_elements(self, elements: list[ast.expr], steps: Steps) -> list[Origin] | None:
        """Return the origins of an element, or of all if the index is unknown."""
        index, rest = steps[0], steps[1:]
        if isinstance(index, int):
            is_inside = -len(elements) <= index < len(elements)
            if not is_inside or _has_star(
                elements[: index + 1] if index >= 0 else elements[index:]
            ):
                return None
            return self.origins(elements[index], rest)
        return [
            origin
            for element in elements
            # The elements of `*names` are those of names.
            for origin in self.origins(element, steps if _has_star([element]) else rest)
        ]

    def _appended(self, created: ast.expr) -> list[ast.expr]:
        """Return the values appended to a list after `name = [...]` or `self.name = [...]`.

        Those to a name are of the same function, and those to an attribute of the same class.
        """
        assignment = self.script.parent(created)
        target = assignment.targets[0] if isinstance(assignment, ast.Assign) else None
        is_named = isinstance(target, (ast.Name, ast.Attribute))
        return self._appends.get(self._list(target), []) if target and is_named else []

    @cached_property
    def _appends(self) -> dict[tuple[ast.AST | None, str], list[ast.expr]]:
        """The values that are appended to each list."""
        appends: dict[tuple[ast.AST | None, str], list[ast.expr]] = defaultdict(list)
        for call in self._calls["append"]:
            owner = call_owner(call)
            if call.args and isinstance(owner, (ast.Name, ast.Attribute)):
                appends[self._list(owner)].append(call.args[0])
        return appends

    def _list(self, name: ast.expr) -> tuple[ast.AST | None, str]:
        """What identifies a list: its name, and its function or, for an attribute, its class."""
        is_name = isinstance(name, ast.Name)
        home = self.script.function(name) if is_name else self.script.enclosing_class(name)
        return home, key_of(name)

    def _follow_dict(self, expression: ast.Dict, steps: Steps) -> list[Origin]:
        """Return the origins of the value under a key, or of all values if it is unknown."""
        named = [
            value
            for key, value in zip(expression.keys, expression.values, strict=True)
            if isinstance(key, ast.Constant) and key.value == steps[0]
        ]
        values = named or expression.values
        return [origin for value in values for origin in self.origins(value, steps[1:])]

    def _follow_call(self, call: ast.Call, steps: Steps) -> list[Origin] | None:
        name, first = last_name(call.func), call.args[0] if call.args else None
        if name in ("dict", "OrderedDict") and steps and first is None:
            value = keyword_value(call, str(steps[0]))
            return self.origins(value, steps[1:]) if value is not None else None
        definition = self.script.definition(call.func)
        if isinstance(definition, FUNCTIONS):
            return self._follow_returns(definition, steps)
        if definition is not None:
            return None
        owner = call_owner(call)
        if owner is not None and name in _RETURN_SELF and not self.script.path_of(call.func):
            return self.origins(owner, steps)
        if name == "prepare" and steps and isinstance(steps[0], int) and len(call.args) > 1:
            return self._follow_argument(call, steps[0], steps[1:])
        if first is not None and name in _RETURN_FIRST:
            return self.origins(first, steps)
        if first is not None and name == "next":
            return self.origins(first, (EACH, *steps))
        of_element = steps[1:] if steps[:1] == (EACH,) else None  # steps of what is iterated over
        match name, of_element:
            case "enumerate", (1, *rest) if first is not None:
                return self.origins(first, (EACH, *rest))
            case "zip", (int(index), *rest):
                return self._follow_argument(call, index, (EACH, *rest))
            case "items", (1, *rest) if owner is not None:
                return self.origins(owner, (ANY, *rest))
            case "values", (*rest,) if owner is not None:
                return self.origins(owner, (ANY, *rest))
            case "enumerate" | "items", (*_,):
                return None
        callee = self.callee(call)
        return self._follow_returns(callee, steps) if isinstance(callee, FUNCTIONS) else None

    def _follow_returns(self, function: Function, steps: Steps) -> list[Origin] | None:
        values = self.returns(function)
        return [origin for value in values for origin in self.origins(value, steps)] or None

    def _follow_argument(self, call: ast.Call, index: int, steps: Steps) -> list[Origin] | None:
        """Return the origins of a positional argument; none if a `*` makes it unknown."""
        if not -len(call.args) <= index < len(call.args) or _has_star(call.args):
            return None
        return self.origins(call.args[index], steps)

    def _assigned_items(self, name: ast.Name, steps: Steps) -> list[Origin]:
        """Return the origins of values assigned to an item: `loaders["val"] = ...`."""
        if not steps or steps[0] == EACH:
            return []
        origins: list[Origin] = []
        for member in self.script.scope(name).members:
            if member.key.startswith("[") and isinstance(member.receiver, ast.Name):
                is_possible = steps[0] == ANY or member.key in (f"[{steps[0]}]", f"[{ANY}]")
                if member.receiver.id == name.id and is_possible:
                    origins.extend(self.origins(member.value, member.steps + steps[1:]))
        return origins


def _has_star(expressions: Iterable[ast.expr]) -> bool:
    return any(isinstance(expression, ast.Starred) for expression in expressions)
