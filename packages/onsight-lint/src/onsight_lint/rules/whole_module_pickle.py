"""Rule on whole networks that are pickled instead of their weights."""

import ast
from collections.abc import Iterator

from onsight_lint.calls import keyword, last_name
from onsight_lint.checkpoints import is_used_as_network, load_calls
from onsight_lint.context import Context
from onsight_lint.fix import fixed, indented, replaced
from onsight_lint.rule import Mistake, Rule
from onsight_lint.vocabulary import Kind

_WHY = (
    "Pickling a whole module stores the import path of its class: the file breaks when the code "
    "is moved or changed, and loading it can run arbitrary code."
)


def _check(context: Context) -> Iterator[Mistake]:
    """torch.save of a module, or torch.load used as one."""
    for call in context.values.calls("save"):
        if (
            context.script.path_of(call.func) == "torch.save"
            and call.args
            and _to_file(context, call)
        ):
            for value in _saved(context, call.args[0]):
                if context.kinds.kind(value) is Kind.NETWORK and _is_plain(value):
                    new = f"{context.script.code(value)}.state_dict()"
                    text = fixed(context.script, value, [replaced(value, new)])
                    problem = (
                        f"all of {context.script.code(value)} is pickled, not just its weights"
                    )
                    yield Mistake(value, problem, text)
    for call in load_calls(context):
        if is_used_as_network(context, call) and (name := _target(context, call)):
            yield _load_mistake(context, call, name)


RULE = Rule("whole-module-pickle", "A whole network is pickled", _WHY, _check, r"(load|save)\(")


def _saved(context: Context, value: ast.expr) -> list[ast.expr]:
    """What is saved: a value, or each value of a dict."""
    for origin in context.values.origins(value):
        if isinstance(origin.node, ast.Dict):
            return list(origin.node.values)
        if isinstance(origin.node, ast.Call) and last_name(origin.node.func) == "dict":
            return [one.value for one in origin.node.keywords]
    return [value]


def _to_file(context: Context, call: ast.Call) -> bool:
    """Whether a file is written, rather than a copy in memory."""
    target = call.args[1] if len(call.args) > 1 else call.args[0]
    return all(last_name(one.node) != "BytesIO" for one in context.values.origins(target))


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is a plain name or attribute, not a call."""
    return isinstance(value, (ast.Name, ast.Attribute)) and last_name(value) != "state_dict"


def _target(context: Context, call: ast.Call) -> str:
    statement = context.script.source(call).statement(call)
    return context.script.code(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


def _load_mistake(context: Context, call: ast.Call, name: str) -> Mistake:
    statement = context.script.source(call).statement(call)
    where = keyword(call, "map_location")
    place = context.script.code(where) if where is not None else '"cpu"'
    path = context.script.code(call.args[0])
    load = f"torch.load({path}, map_location={place}, weights_only=True)"
    text = indented(context.script, statement, f"{name}.load_state_dict({load})")
    problem = f"all of {name} is unpickled; create the network first, then load its weights"
    return Mistake(call, problem, text)
