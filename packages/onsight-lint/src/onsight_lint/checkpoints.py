"""The calls of torch.load, and whether they return a whole network."""

import ast

from onsight_lint.facts import Facts


def load_calls(facts: Facts) -> list[ast.Call]:
    """The calls of torch.load."""
    calls = facts.values.calls("load")
    return [call for call in calls if facts.script.path_of(call.func) == "torch.load" and call.args]


def is_used_as_network(facts: Facts, call: ast.Call) -> bool:
    """Whether the result of torch.load is itself used as a network."""
    statement = facts.script.source(call).statement(call)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0]
    value = statement.value
    while isinstance(value, ast.Call) and value is not call:  # torch.load(path).to(device)
        value = value.func.value if isinstance(value.func, ast.Attribute) else value.func
    if value is not call or not isinstance(target, (ast.Name, ast.Attribute)):
        return False
    used = facts.kinds.uses(target)
    if used & {"keys", "items", "get", "pop", "update", "values"}:
        return False
    return bool(
        used & {"eval", "train", "parameters", "state_dict", "load_state_dict", "forward", "module"}
    )
