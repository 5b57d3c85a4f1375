"""Trace values to their origins through names, attributes, arguments and returns."""

import ast
from collections import defaultdict
from dataclasses import dataclass

from onsight_lint.scopes import ANY, EACH, Binding, Step
from onsight_lint.script import Definition, Script
from onsight_lint.syntax import (
    FUNCTIONS,
    Function,
    call_owner,
    default_value,
    last_name,
    own_nodes,
    word_set,
)

Steps = tuple[Step, ...]

_RETURN_SELF = word_set(  # methods that return their object, or a copy of it
    "to cuda cpu half float double bfloat16 eval train requires_grad_ xpu share_memory_ compile"
)
_RETURN_FIRST = word_set(  # calls that return their first argument, wrapped
    "compile DataParallel DistributedDataParallel DDP FullyShardedDataParallel FSDP deepcopy "
    "script trace convert_sync_batchnorm tqdm trange track iter list tuple islice log_every "
    "prepare prepare_model prepare_data_loader progress_bar setup_dataloaders auto_model "
    "auto_dataloader MpDeviceLoader freeze optimize_for_inference"
)
_MAX_DEPTH = 40  # steps followed from a use to its origin
_MAX_WORK = 2000  # expressions visited before a search is abandoned
_MAX_STEPS = 6  # nested levels of tuples, dicts and loops


@dataclass(frozen=True, eq=False)
class Origin:
    """An expression or parameter beyond which a value cannot be followed."""

    node: ast.AST
    steps: Steps = ()  # path from the node to the part of it that is meant


class Values:
    """Follows values through the files of a script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._origins: dict[tuple[ast.AST, Steps], list[Origin]] = {}
        self._depth = self._work = 0
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._sites: dict[Definition, list[ast.Call]] = {}
        self._returned: dict[Function, list[ast.expr]] = {}
        for node in script.nodes(ast.Call):
            self._calls[last_name(node.func)].append(node)

    def origins(self, expression: ast.AST, steps: Steps = ()) -> list[Origin]:
        """Return everything that an expression, or a part of it, may come from."""
        key = expression, steps
        if key in self._origins:
            return self._origins[key]
        self._origins[key] = []  # recursion adds nothing
        self._work = self._work + 1 if self._depth else 0
        if self._depth > _MAX_DEPTH or self._work > _MAX_WORK or len(steps) > _MAX_STEPS:
            return []
        self._depth += 1
        try:
            followed = self._follow(expression, steps)
            origins = [Origin(expression, steps)] if followed is None else _distinct(followed)
        finally:
            self._depth -= 1
        self._origins[key] = origins
        return origins

    def calls(self, name: str) -> list[ast.Call]:
        """Return all calls of a function or method of this name, on any object."""
        return self._calls[name]

    def callee(self, call: ast.Call) -> Definition | None:
        """Return the function, method or class of these files that is called."""
        definition = self.script.definition(call.func)
        if definition is not None or not isinstance(call.func, ast.Attribute):
            return definition
        owners = self.classes(call.func.value)
        methods = [self.method(owner, call.func.attr) for owner in owners]
        return next((method for method in methods if method is not None), None)

    def call_sites(self, function: Definition) -> list[ast.Call]:
        """Return the calls of a function; for an __init__, of its class."""
        if function in self._sites:
            return self._sites[function]
        self._sites[function] = []
        target: Definition = function
        owner = self.script.parent(function)
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            target = owner
        sites = [call for call in self._calls[target.name] if self.callee(call) is target]
        self._sites[function] = sites
        return sites

    def argument(self, call: ast.Call, function: Function, name: str) -> ast.expr | None:
        """Return the argument that a call passes for a parameter, or else its default."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        if name in names:
            n = names.index(name) - self._bound_parameters(call, function)
            if 0 <= n < len(call.args):
                up_to_it = call.args[: n + 1]
                is_starred = any(isinstance(value, ast.Starred) for value in up_to_it)
                return None if is_starred else call.args[n]
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        return default_value(function, name)

    def returns(self, function: Function) -> list[ast.expr]:
        """Return the values that a function returns; none for a generator."""
        if function not in self._returned:
            nodes = list(own_nodes(function))
            values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value]
            yields = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes)
            self._returned[function] = [] if yields else values
        return self._returned[function]

    def bases(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """Return the base classes that are defined in these files."""
        definitions = (self.script.definition(base) for base in owner.bases)
        return [
            base for base in definitions if isinstance(base, ast.ClassDef) and base is not owner
        ]

    def lineage(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """Return a class and all its bases in these files."""
        lineage = [owner]
        for ancestor in lineage:  # grows while it is iterated
            lineage.extend(base for base in self.bases(ancestor) if base not in lineage)
        return lineage

    def method(self, owner: ast.ClassDef, name: str) -> Function | None:
        """Return the method of a class, its own or inherited."""
        for ancestor in self.lineage(owner):
            for node in ancestor.body:
                if isinstance(node, FUNCTIONS) and node.name == name:
                    return node
        return None

    def classes(self, expression: ast.AST) -> list[ast.ClassDef]:
        """Return the classes of these files that a value may be an instance of."""
        if isinstance(expression, ast.Name) and expression.id in ("self", "cls"):
            owner = self.script.enclosing_class(expression)
            return [owner] if owner else []
        if isinstance(expression, ast.Call) and last_name(expression.func) == "super":
            owner = self.script.enclosing_class(expression)
            return self.bases(owner) if owner else []
        classes = (self._created_class(origin) for origin in self.origins(expression))
        return [owner for owner in classes if owner is not None]

    def members(self, expression: ast.Attribute) -> list[tuple[ast.expr, Steps]]:
        """Return the values assigned to an attribute of an instance of a class in these files."""
        owners = self.classes(expression.value)
        family = [ancestor for owner in owners for ancestor in self.lineage(owner)]
        members: list[tuple[ast.expr, Steps]] = []
        for owner in dict.fromkeys(family):
            for member in self.script.scope(owner).attributes.get((owner, expression.attr), []):
                members.append((member.value, member.steps))
            for binding in self.script.scope(owner).tables[owner].get(expression.attr, []):
                if binding.kind == "value" and binding.value is not None:
                    members.append((binding.value, binding.steps))
        return members

    def _created_class(self, origin: Origin) -> ast.ClassDef | None:
        """The class of these files of which an origin creates an instance."""
        if origin.steps or not isinstance(origin.node, ast.Call):
            return None
        definition = self.script.definition(origin.node.func)
        return definition if isinstance(definition, ast.ClassDef) else None

    def _bound_parameters(self, call: ast.Call, function: Function) -> int:
        """The number of parameters (self, cls) that are bound without being in the call."""
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
        """The origins one step further back; None if there is no such step."""
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
                return self._follow_parts([*parts, *self._appended(expression)], steps)
            case ast.Dict() if steps:
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
        followed = [self._follow_binding(binding, steps) for binding in bindings]
        ways = [origins for origins in followed if origins is not None]
        items = self._assigned_items(name, steps)
        if not ways and not items:
            return None
        return [origin for way in (*ways, items) for origin in way]

    def _follow_binding(self, binding: Binding, steps: Steps) -> list[Origin] | None:
        if binding.kind == "value" and binding.value is not None:
            return self.origins(binding.value, binding.steps + steps)
        if binding.kind == "parameter" and isinstance(binding.node, ast.arg):
            return self._follow_parameter(binding.node, steps)
        if binding.kind == "import":
            return self._follow_exported(binding.path, steps)
        return None

    def _follow_exported(self, path: str, steps: Steps) -> list[Origin] | None:
        """The origins of a value in a module of these files."""
        bindings = [item for item in self.script.exported(path) if item.kind == "value"]
        followed = [self._follow_binding(binding, steps) for binding in bindings]
        ways = [origins for origins in followed if origins is not None]
        return [origin for way in ways for origin in way] if ways else None

    def _follow_parameter(self, node: ast.arg, steps: Steps) -> list[Origin]:
        function = self.script.parent(self.script.parent(node))
        origins: list[Origin] = []
        if isinstance(function, FUNCTIONS):
            for call in self.call_sites(function):
                value = self.argument(call, function, node.arg)
                if value is not None:
                    origins.extend(self.origins(value, steps))
        return origins or [Origin(node, steps)]

    def _follow_attribute(self, expression: ast.Attribute, steps: Steps) -> list[Origin] | None:
        if expression.attr == "module":  # the network inside DataParallel and similar wrappers
            return self.origins(expression.value, steps)
        path = self.script.path_of(expression)
        if path:
            return self._follow_exported(path, steps) or None
        members = self.members(expression)
        return [
            origin for value, way in members for origin in self.origins(value, way + steps)
        ] or None

    def _follow_item(self, value: ast.expr, key: ast.expr, steps: Steps) -> list[Origin] | None:
        step: Step = ANY
        if isinstance(key, ast.Constant) and isinstance(key.value, (int, str)):
            step = key.value
        origins = self.origins(value, (step, *steps))
        if len(origins) == 1 and origins[0].node is value:
            return None
        return origins

    def _follow_parts(self, parts: list[ast.expr], steps: Steps) -> list[Origin] | None:
        first, rest = steps[0], steps[1:]
        if isinstance(first, int):
            is_inside = -len(parts) <= first < len(parts)
            return self.origins(parts[first], rest) if is_inside else None
        return [origin for part in parts for origin in self.origins(part, rest)]

    def _appended(self, created: ast.expr) -> list[ast.expr]:
        """The values appended, in the same function, to a list that is assigned to a name."""
        holder = self.script.parent(created)
        if not isinstance(holder, ast.Assign) or not isinstance(holder.targets[0], ast.Name):
            return []
        name, home = holder.targets[0].id, self.script.function(created)
        return [
            call.args[0]
            for call in self._calls["append"]
            if isinstance(owner := call_owner(call), ast.Name) and owner.id == name
            if call.args and self.script.function(call) is home
        ]

    def _follow_dict(self, expression: ast.Dict, steps: Steps) -> list[Origin] | None:
        pairs = list(zip(expression.keys, expression.values, strict=True))
        if steps[0] == EACH:
            return None
        named = [value for key, value in pairs if _is_constant(key, steps[0])]
        values = named or [value for _, value in pairs]
        return [origin for value in values for origin in self.origins(value, steps[1:])]

    def _follow_call(self, call: ast.Call, steps: Steps) -> list[Origin] | None:
        name, first = last_name(call.func), call.args[0] if call.args else None
        definition = self.script.definition(call.func)
        if isinstance(definition, FUNCTIONS):
            return self._follow_returns(definition, steps)
        if definition is not None:
            return None
        owner = call_owner(call)
        if owner is not None and name in _RETURN_SELF and not self.script.path_of(call.func):
            return self.origins(owner, steps)
        if name == "prepare" and steps and isinstance(steps[0], int) and len(call.args) > 1:
            argument = _positional(call, steps[0])
            return self.origins(argument, steps[1:]) if argument else None
        if first is not None and name in _RETURN_FIRST:
            return self.origins(first, steps)
        if first is not None and name == "next":
            return self.origins(first, (EACH, *steps))
        if steps and steps[0] == EACH:
            return self._follow_each(call, name, steps)
        callee = self.callee(call)
        return self._follow_returns(callee, steps) if isinstance(callee, FUNCTIONS) else None

    def _follow_returns(self, function: Function, steps: Steps) -> list[Origin] | None:
        values = self.returns(function)
        return [origin for value in values for origin in self.origins(value, steps)] or None

    def _follow_each(self, call: ast.Call, name: str, steps: Steps) -> list[Origin] | None:
        """The elements of the result of a call, when looped over."""
        key = steps[1] if len(steps) > 1 else None
        if name == "enumerate" and call.args:
            return self.origins(call.args[0], (EACH, *steps[2:])) if key == 1 else None
        if name == "zip" and isinstance(key, int):
            argument = _positional(call, key)
            return self.origins(argument, (EACH, *steps[2:])) if argument else None
        if isinstance(call.func, ast.Attribute) and name in ("items", "values"):
            if name == "items" and key != 1:
                return None
            return self.origins(call.func.value, (ANY, *steps[2 if name == "items" else 1 :]))
        callee = self.callee(call)
        return self._follow_returns(callee, steps) if isinstance(callee, FUNCTIONS) else None

    def _assigned_items(self, name: ast.Name, steps: Steps) -> list[Origin]:
        """The values assigned to a key: `loaders["val"] = ...`."""
        if not steps or steps[0] == EACH:
            return []
        origins: list[Origin] = []
        for member in self.script.scope(name).members:
            if member.key.startswith("[") and isinstance(member.receiver, ast.Name):
                fits = steps[0] == ANY or member.key in (f"[{steps[0]}]", f"[{ANY}]")
                if member.receiver.id == name.id and fits:
                    origins.extend(self.origins(member.value, member.steps + steps[1:]))
        return origins


def _is_constant(key: ast.expr | None, value: object) -> bool:
    return isinstance(key, ast.Constant) and key.value == value


def _distinct(origins: list[Origin]) -> list[Origin]:
    by_key = {(origin.node, origin.steps): origin for origin in origins}
    return list(by_key.values())


def _positional(call: ast.Call, index: int) -> ast.expr | None:
    """Return a positional argument by its index; None if a star makes it uncertain."""
    if not -len(call.args) <= index < len(call.args):
        return None
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return None
    return call.args[index]
