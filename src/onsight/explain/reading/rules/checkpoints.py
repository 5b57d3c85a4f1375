"""Rules on saved networks: loaded without map_location, or pickled whole."""

import ast
import re
from collections.abc import Iterator

from onsight.explain.reading.calls import keyword, last_name
from onsight.explain.reading.facts import Facts
from onsight.explain.reading.finding import Finding
from onsight.explain.reading.fix import fixed, found, indented, replaced
from onsight.explain.reading.source import FUNCTIONS
from onsight.explain.reading.values import Origin
from onsight.explain.reading.vocabulary import Kind

_ACCELERATORS = re.compile(r"cuda|mps|xpu|accelerator|npu|\bgpu", re.IGNORECASE)
_HELPERS = re.compile(r"optim|sched|scaler|sampler|(^|_)opt$")  # have states, no weights
_WHY_MAP = (
    "The tensors go back to the device that they were saved from: on a machine without it loading "
    "fails, and several processes all load onto the same GPU."
)
_WHY_WHOLE = (
    "Pickling the whole module stores the import path of its class: the file breaks when the code "
    "moves or changes, and loading it may run any code."
)


def map_locations(facts: Facts) -> Iterator[Finding]:
    """torch.load of weights that does not say where to."""
    if not _uses_accelerator(facts):
        return
    for call in _loads(facts):
        if len(call.args) > 1 or any(one.arg in ("map_location", None) for one in call.keywords):
            continue
        if _is_considered(facts, call) or _is_network(facts, call):
            continue
        if _reaches_weights(facts, call):
            where = _device(facts, call)
            inner = [*map(facts.script.words, call.args)]
            inner += [facts.script.words(one) for one in call.keywords]
            new = f"{facts.script.words(call.func)}({', '.join([*inner, f'map_location={where}'])})"
            text = fixed(facts.script, call, [replaced(call, new)])
            problem = "weights are loaded without saying onto which device"
            yield found(facts.script, call, "map-location", problem, _WHY_MAP, text)


def _is_considered(facts: Facts, call: ast.Call) -> bool:
    """Whether the same function loads the same file with map_location in another branch."""
    return any(
        keyword(other, "map_location") is not None
        and facts.script.function(other) is facts.script.function(call)
        and ast.dump(other.args[0]) == ast.dump(call.args[0])
        for other in _loads(facts)
    )


def whole_modules(facts: Facts) -> Iterator[Finding]:
    """torch.save of a module, or torch.load used as one."""
    for call in facts.values.calls("save"):
        if facts.script.path_of(call.func) == "torch.save" and call.args and _to_file(facts, call):
            for value in _saved(facts, call.args[0]):
                if facts.kinds.kind(value) is Kind.NETWORK and _is_plain(value):
                    new = f"{facts.script.words(value)}.state_dict()"
                    text = fixed(facts.script, value, [replaced(value, new)])
                    problem = f"{facts.script.words(value)} is pickled whole, not its weights"
                    yield found(
                        facts.script, value, "whole-module-pickle", problem, _WHY_WHOLE, text
                    )
    for call in _loads(facts):
        if _is_network(facts, call) and (name := _target(facts, call)):
            yield _load_finding(facts, call, name)


def _loads(facts: Facts) -> list[ast.Call]:
    calls = facts.values.calls("load")
    return [call for call in calls if facts.script.path_of(call.func) == "torch.load" and call.args]


def _saved(facts: Facts, value: ast.expr) -> list[ast.expr]:
    """What is saved: a value, or each value of a dict."""
    for origin in facts.values.origins(value):
        if isinstance(origin.node, ast.Dict):
            return list(origin.node.values)
        if isinstance(origin.node, ast.Call) and last_name(origin.node.func) == "dict":
            return [one.value for one in origin.node.keywords]
    return [value]


def _to_file(facts: Facts, call: ast.Call) -> bool:
    """Whether a file is written, not a copy made in memory."""
    target = call.args[1] if len(call.args) > 1 else call.args[0]
    return all(last_name(one.node) != "BytesIO" for one in facts.values.origins(target))


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is a name as it stands, not a call on it."""
    return isinstance(value, (ast.Name, ast.Attribute)) and last_name(value) != "state_dict"


def _uses_accelerator(facts: Facts) -> bool:
    """Whether a script can run on anything but the CPU."""
    says_device = fixed = False
    for node in facts.script.nodes():
        words = ""
        if isinstance(node, (ast.Name, ast.Attribute, ast.arg)):
            words = last_name(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parent = facts.script.parent(node)
            words = "" if isinstance(parent, ast.Expr) else node.value[:200]
            fixed = fixed or node.value == "cpu"
        if _ACCELERATORS.search(words):
            return True
        says_device = says_device or words in ("device", "--device")
    return says_device and not fixed


def _reaches_weights(facts: Facts, call: ast.Call) -> bool:
    """Whether what is loaded is given to load_state_dict."""
    for name in ("load_state_dict", "load_checkpoint", "load_weights"):
        for use in facts.values.calls(name):
            owner = use.func.value if isinstance(use.func, ast.Attribute) else None
            if owner is not None and (
                facts.kinds.kind(owner) is Kind.OPTIMIZER or _HELPERS.search(last_name(owner))
            ):
                continue
            if any(_comes_from(facts, value, call) for value in use.args):
                return True
    return False


def _comes_from(facts: Facts, value: ast.AST, call: ast.Call, depth: int = 6) -> bool:
    """Whether a value, or what it was made of, is the result of a call."""
    if value is call:
        return True
    if not depth:
        return False
    for origin in facts.values.origins(value):
        if origin.node is call:
            return True
        for part in _parts(origin):
            if _comes_from(facts, part, call, depth - 1):
                return True
    return False


def _parts(origin: Origin) -> list[ast.expr]:
    """What an expression is made of: of a dict comprehension, what it goes through."""
    match origin.node:
        case ast.DictComp(generators=[first, *_]):
            return [first.iter]
        case ast.Call(func=function, args=arguments):
            owner = [function.value] if isinstance(function, ast.Attribute) else []
            return [*owner, *arguments]
        case ast.Subscript(value=value) | ast.Attribute(value=value):
            return [value]
    return []


def _is_network(facts: Facts, call: ast.Call) -> bool:
    """Whether what torch.load gives is itself used as a network."""
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
    return bool(used & {"eval", "train", "parameters", "state_dict", "load_state_dict", "forward"})


def _target(facts: Facts, call: ast.Call) -> str:
    statement = facts.script.source(call).statement(call)
    return facts.script.words(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


def _load_finding(facts: Facts, call: ast.Call, name: str) -> Finding:
    statement = facts.script.source(call).statement(call)
    where = keyword(call, "map_location")
    place = facts.script.words(where) if where is not None else '"cpu"'
    path = facts.script.words(call.args[0])
    load = f"torch.load({path}, map_location={place}, weights_only=True)"
    text = indented(facts.script, statement, f"{name}.load_state_dict({load})")
    problem = f"{name} is unpickled whole; make the network first, then load its weights"
    return found(facts.script, call, "whole-module-pickle", problem, _WHY_WHOLE, text)


def _device(facts: Facts, call: ast.Call) -> str:
    """The user's own name for the device where there is one, else the CPU."""
    scopes = facts.script.scope(call)
    for home in (facts.script.function(call), facts.script.source(call).tree):
        bindings = scopes.tables[home].get("device", [])
        known = [one for one in bindings if one.how in ("value", "parameter")]
        if any(isinstance(home, FUNCTIONS) or one.place < (call.lineno, 0) for one in known):
            return "device"
    return '"cpu"'
