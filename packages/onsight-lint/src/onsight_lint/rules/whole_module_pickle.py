"""Rule on whole networks that are pickled instead of their weights."""

import ast
from collections.abc import Iterator

from onsight_lint.edits import indented, show_replaced
from onsight_lint.kinds import Kind
from onsight_lint.rule import Context, Mistake, Rule
from onsight_lint.syntax import keyword_value, last_name


def _check(context: Context) -> Iterator[Mistake]:
    """torch.save of a module, or torch.load whose result is used as a module."""
    for call in context.values.calls("save"):
        path = context.script.path_of(call.func)
        if path == "torch.save" and call.args and _writes_file(context, call):
            for value in _saved_values(context, call.args[0]):
                if context.kinds.kind(value) is Kind.NETWORK and _is_network_itself(value):
                    yield _save_mistake(context, value)
    for call in context.torch_loads:
        network = context.loaded_network(call)
        if network is not None:
            yield _load_mistake(context, call, network)


RULE = Rule(
    id="whole-module-pickle",
    title="A whole network is pickled",
    why=(
        "Pickling a module stores the import path of its class: the file breaks when the code is "
        "moved or changed, and loading it can run arbitrary code."
    ),
    check=_check,
    pattern=r"(load|save)\(",
)


def _saved_values(context: Context, value: ast.expr) -> list[ast.expr]:
    """The saved values: a single value, or each value of a dict."""
    for origin in context.values.origins(value):
        if isinstance(origin.node, ast.Dict):
            return list(origin.node.values)
        if isinstance(origin.node, ast.Call) and last_name(origin.node.func) == "dict":
            return [keyword.value for keyword in origin.node.keywords]
    return [value]


def _writes_file(context: Context, call: ast.Call) -> bool:
    """Return whether a file is written, rather than a copy in memory."""
    target = call.args[1] if len(call.args) > 1 else call.args[0]
    return all(last_name(item.node) != "BytesIO" for item in context.values.origins(target))


def _is_network_itself(value: ast.expr) -> bool:
    """Return whether a value is a plain name or attribute, not a call such as `state_dict()`."""
    return isinstance(value, (ast.Name, ast.Attribute)) and last_name(value) != "state_dict"


def _save_mistake(context: Context, value: ast.expr) -> Mistake:
    name = context.script.code(value)
    fixed = show_replaced(context.script, value, f"{name}.state_dict()")
    problem = f"all of {name} is pickled, not just its weights"
    return Mistake(value, problem, fixed)


def _load_mistake(context: Context, call: ast.Call, network: ast.expr) -> Mistake:
    code = context.script.code
    name = code(network)
    location = keyword_value(call, "map_location")
    device = code(location) if location is not None else '"cpu"'
    load = f"torch.load({code(call.args[0])}, map_location={device}, weights_only=True)"
    fixed = indented(context.script, call, f"{name}.load_state_dict({load})")
    problem = f"all of {name} is unpickled: create the network, then load only its weights"
    return Mistake(call, problem, fixed)
