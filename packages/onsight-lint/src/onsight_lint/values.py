"""Where a value comes from: follows names, attributes, arguments and returns to their origins."""

import ast
from collections import defaultdict
from dataclasses import dataclass

from onsight_lint.calls import last_name
from onsight_lint.definitions import Definitions
from onsight_lint.scopes import ANY, EACH, Binding, Step
from onsight_lint.script import Definition, Script
from onsight_lint.source import FUNCTIONS, Function
from onsight_lint.vocabulary import word_set

Steps = tuple[Step, ...]

_SAME = word_set(  # methods that return their object, or a copy of it
    "to cuda cpu half float double bfloat16 eval train requires_grad_ xpu share_memory_ compile"
)
_WRAPPERS = word_set(  # calls that return their first argument, wrapped
    "compile DataParallel DistributedDataParallel DDP FullyShardedDataParallel FSDP deepcopy "
    "script trace convert_sync_batchnorm tqdm trange track iter list tuple islice log_every "
    "prepare prepare_model prepare_data_loader progress_bar setup_dataloaders auto_model "
    "auto_dataloader MpDeviceLoader freeze optimize_for_inference"
)
_DEEPEST = 40  # steps from a use to its origin
_MOST_WORK = 2000  # steps in total, before the search is given up
_MOST_STEPS = 6  # into tuples, dicts and loops


@dataclass(frozen=True, eq=False)
class Origin:
    """An expression or parameter that leads no further; steps: which part of it is meant."""

    node: ast.AST
    steps: Steps = ()


class Values(Definitions):
    """Follows values through the files of a script."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self._known: dict[tuple[ast.AST, Steps], list[Origin]] = {}
        self._depth = self._work = 0
        self._calls: dict[str, list[ast.Call]] = defaultdict(list)
        self._sites: dict[Definition, list[ast.Call]] = {}
        for node in script.nodes(ast.Call):
            self._calls[last_name(node.func)].append(node)

    def origins(self, expression: ast.AST, steps: Steps = ()) -> list[Origin]:
        """Everything that an expression, or a part of it, may come from."""
        key = expression, steps
        if key in self._known:
            return self._known[key]
        self._known[key] = []  # recursion adds nothing
        self._work = self._work + 1 if self._depth else 0
        if self._depth > _DEEPEST or self._work > _MOST_WORK or len(steps) > _MOST_STEPS:
            return []
        self._depth += 1
        try:
            followed = self._follow(expression, steps)
            found = [Origin(expression, steps)] if followed is None else _distinct(followed)
        finally:
            self._depth -= 1
        self._known[key] = found
        return found

    def calls(self, name: str) -> list[ast.Call]:
        """All calls of a function or method of this name, on any object."""
        return self._calls[name]

    def callee(self, call: ast.Call) -> Definition | None:
        """The function, method or class of these files that is called."""
        found = self.script.definition(call.func)
        if found is not None or not isinstance(call.func, ast.Attribute):
            return found
        owners = self.classes(call.func.value)
        methods = [self.method(owner, call.func.attr) for owner in owners]
        return next((method for method in methods if method is not None), None)

    def call_sites(self, function: Definition) -> list[ast.Call]:
        """The calls of a function; of a class for its __init__."""
        if function in self._sites:
            return self._sites[function]
        self._sites[function] = []
        target: Definition = function
        owner = self.script.parent(function)
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            target = owner
        found = [call for call in self._calls[target.name] if self.callee(call) is target]
        self._sites[function] = found
        return found

    def classes(self, expression: ast.AST) -> list[ast.ClassDef]:
        """The classes of these files that a value may be an instance of."""
        if isinstance(expression, ast.Name) and expression.id in ("self", "cls"):
            owner = self.script.enclosing_class(expression)
            return [owner] if owner else []
        if isinstance(expression, ast.Call) and last_name(expression.func) == "super":
            owner = self.script.enclosing_class(expression)
            return self.bases(owner) if owner else []
        found = (self.made(origin) for origin in self.origins(expression))
        return [one for one in found if one is not None]

    def made(self, origin: Origin) -> ast.ClassDef | None:
        """The class of these files of which an origin creates an instance."""
        if origin.steps or not isinstance(origin.node, ast.Call):
            return None
        found = self.script.definition(origin.node.func)
        return found if isinstance(found, ast.ClassDef) else None

    def members(self, expression: ast.Attribute) -> list[tuple[ast.expr, Steps]]:
        """The values assigned to an attribute of an instance of a class in these files."""
        owners = self.classes(expression.value)
        family = [one for owner in owners for one in self.lineage(owner)]
        found: list[tuple[ast.expr, Steps]] = []
        for owner in dict.fromkeys(family):
            for member in self.script.scope(owner).attributes.get((owner, expression.attr), []):
                found.append((member.value, member.steps))
            for binding in self.script.scope(owner).tables[owner].get(expression.attr, []):
                if binding.how == "value" and binding.value is not None:
                    found.append((binding.value, binding.steps))
        return found

    def _follow(self, expression: ast.AST, steps: Steps) -> list[Origin] | None:
        """The origins found one step further back; None if there is no such step."""
        match expression:
            case ast.Name():
                return self._follow_name(expression, steps)
            case ast.Attribute():
                return self._follow_attribute(expression, steps)
            case ast.Call():
                return self._follow_call(expression, steps)
            case ast.Subscript(value=value, slice=key) if not isinstance(key, ast.Slice):
                return self._follow_item(expression, value, key, steps)
            case ast.IfExp(body=body, orelse=other):
                return [*self.origins(body, steps), *self.origins(other, steps)]
            case ast.BoolOp(values=values):
                return [one for value in values for one in self.origins(value, steps)]
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
        scopes = self.script.scope(name)
        bindings = scopes.reaching(name)
        if not bindings:
            return None
        found = [self._follow_binding(binding, steps) for binding in bindings]
        items = self._items(name, steps)
        ways = [one for one in found if one is not None]
        if not ways and not items:
            return None
        return [one for way in (*ways, items) for one in way]

    def _follow_binding(self, binding: Binding, steps: Steps) -> list[Origin] | None:
        if binding.how == "value" and binding.value is not None:
            return self.origins(binding.value, binding.steps + steps)
        if binding.how == "parameter" and isinstance(binding.node, ast.arg):
            return self._follow_parameter(binding.node, steps)
        if binding.how == "import":
            exported = self.script.exported(binding.path)
            found = [self._follow_binding(one, steps) for one in exported if one.how == "value"]
            ways = [one for one in found if one is not None]
            return [one for way in ways for one in way] if ways else None
        return None

    def _follow_parameter(self, node: ast.arg, steps: Steps) -> list[Origin]:
        function = self.script.parent(self.script.parent(node))
        found: list[Origin] = []
        if isinstance(function, FUNCTIONS):
            for call in self.call_sites(function):
                value = self.argument(call, function, node.arg)
                if value is not None:
                    found.extend(self.origins(value, steps))
        return found or [Origin(node, steps)]

    def _follow_attribute(self, expression: ast.Attribute, steps: Steps) -> list[Origin] | None:
        if expression.attr == "module":  # what DataParallel and the like wrap
            return self.origins(expression.value, steps)
        path = self.script.path_of(expression)
        if path:
            values = [one for one in self.script.exported(path) if one.how == "value"]
            ways = [self._follow_binding(one, steps) for one in values]
            found = [one for way in ways if way is not None for one in way]
            return found or None
        members = self.members(expression)
        return [one for value, way in members for one in self.origins(value, way + steps)] or None

    def _follow_item(
        self, expression: ast.Subscript, value: ast.expr, key: ast.expr, steps: Steps
    ) -> list[Origin] | None:
        step: Step = ANY
        if isinstance(key, ast.Constant) and isinstance(key.value, (int, str)):
            step = key.value
        found = self.origins(value, (step, *steps))
        if len(found) == 1 and found[0].node is value:
            return None
        return found

    def _follow_parts(self, parts: list[ast.expr], steps: Steps) -> list[Origin] | None:
        first, rest = steps[0], steps[1:]
        if isinstance(first, int):
            inside = -len(parts) <= first < len(parts)
            return self.origins(parts[first], rest) if inside else None
        return [one for part in parts for one in self.origins(part, rest)]

    def _appended(self, made: ast.expr) -> list[ast.expr]:
        """What is appended, in the same function, to a list that is assigned to a name."""
        holder = self.script.parent(made)
        if not isinstance(holder, ast.Assign) or not isinstance(holder.targets[0], ast.Name):
            return []
        name, home = holder.targets[0].id, self.script.function(made)
        return [
            call.args[0]
            for call in self._calls["append"]
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
            if call.func.value.id == name and call.args and self.script.function(call) is home
        ]

    def _follow_dict(self, expression: ast.Dict, steps: Steps) -> list[Origin] | None:
        pairs = list(zip(expression.keys, expression.values, strict=True))
        if steps[0] == EACH:
            return None
        named = [value for key, value in pairs if _is_constant(key, steps[0])]
        values = named or [value for _, value in pairs]
        return [one for value in values for one in self.origins(value, steps[1:])]

    def _follow_call(self, call: ast.Call, steps: Steps) -> list[Origin] | None:
        name, first = last_name(call.func), call.args[0] if call.args else None
        method = isinstance(call.func, ast.Attribute)
        defined = self.script.definition(call.func)
        if isinstance(defined, FUNCTIONS):
            return self._follow_returns(defined, steps)
        if defined is not None:
            return None
        if method and name in _SAME and not self.script.path_of(call.func):
            assert isinstance(call.func, ast.Attribute)
            return self.origins(call.func.value, steps)
        if name == "prepare" and steps and isinstance(steps[0], int) and len(call.args) > 1:
            inside = steps[0] < len(call.args)
            return self.origins(call.args[steps[0]], steps[1:]) if inside else None
        if first is not None and name in _WRAPPERS:
            return self.origins(first, steps)
        if first is not None and name == "next":
            return self.origins(first, (EACH, *steps))
        if steps and steps[0] == EACH:
            return self._follow_each(call, name, steps)
        callee = self.callee(call)
        return self._follow_returns(callee, steps) if isinstance(callee, FUNCTIONS) else None

    def _follow_returns(self, function: Function, steps: Steps) -> list[Origin] | None:
        values = self.returns(function)
        return [one for value in values for one in self.origins(value, steps)] or None

    def _follow_each(self, call: ast.Call, name: str, steps: Steps) -> list[Origin] | None:
        """The elements of the result of a call, when looped over."""
        key = steps[1] if len(steps) > 1 else None
        if name == "enumerate" and call.args:
            return self.origins(call.args[0], (EACH, *steps[2:])) if key == 1 else None
        if name == "zip" and isinstance(key, int) and key < len(call.args):
            return self.origins(call.args[key], (EACH, *steps[2:]))
        if isinstance(call.func, ast.Attribute) and name in ("items", "values"):
            if name == "items" and key != 1:
                return None
            return self.origins(call.func.value, (ANY, *steps[2 if name == "items" else 1 :]))
        callee = self.callee(call)
        return self._follow_returns(callee, steps) if isinstance(callee, FUNCTIONS) else None

    def _items(self, name: ast.Name, steps: Steps) -> list[Origin]:
        """What was assigned to a key: `loaders["val"] = ...`."""
        if not steps or steps[0] == EACH:
            return []
        found: list[Origin] = []
        for member in self.script.scope(name).members:
            if member.key.startswith("[") and isinstance(member.receiver, ast.Name):
                same = member.receiver.id == name.id
                fits = steps[0] == ANY or member.key in (f"[{steps[0]}]", f"[{ANY}]")
                if same and fits:
                    found.extend(self.origins(member.value, member.steps + steps[1:]))
        return found


def _is_constant(key: ast.expr | None, value: object) -> bool:
    return isinstance(key, ast.Constant) and key.value == value


def _distinct(origins: list[Origin]) -> list[Origin]:
    seen = {(origin.node, origin.steps): origin for origin in origins}
    return list(seen.values())
