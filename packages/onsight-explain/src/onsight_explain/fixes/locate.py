"""Find the parts of a training loop at a site: the network's call, its batch, loss and loops."""

import ast
from collections.abc import Iterator

from onsight_explain.fixes.draft import CannotFix, Draft, block_of, called_name
from onsight_explain.tracing.sites import Site

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
_NETWORK_METHODS = ("parameters", "train", "eval")  # an object with such a call is a network


def find_network_call(draft: Draft, site: Site) -> ast.Call:
    """Return the call of the network at a site. Raises CannotFix unless exactly one qualifies."""
    if site.end:  # the exact position of the call is known, not only its line
        return draft.find_call(site)
    networks, line = _network_names(draft), draft.current_line(site.line)
    calls: list[ast.Call] = [
        call
        for call in draft.source.all(ast.Call)
        if call.lineno <= line <= call.end_lineno and draft.source.code(call.func) in networks
    ]
    if len(calls) != 1:
        raise CannotFix("cannot tell which call is the model's forward")
    return calls[0]


def find_batch_argument(draft: Draft, site: Site) -> ast.expr:
    """Return the network's first positional argument. Raises CannotFix if there is none."""
    arguments = find_network_call(draft, site).args
    if not arguments or isinstance(arguments[0], ast.Starred):
        raise CannotFix("the images are not the network's first positional argument")
    return arguments[0]


def fill_names(draft: Draft, site: Site | None, template: str) -> str:
    """Replace {network} in a template by the script's name, and {device} by its device type."""
    if site is None or "{" not in template:
        return template
    call = find_network_call(draft, site)
    network = draft.source.code(call.func)
    has_named_input = bool(call.args) and isinstance(call.args[0], ast.Name)
    tensor = draft.source.code(call.args[0]) if has_named_input else f"next({network}.parameters())"
    return template.replace("{network}", network).replace("{device}", f"{tensor}.device.type")


def find_forward_block(draft: Draft, site: Site) -> tuple[ast.stmt, ast.stmt]:
    """Return the statement with the network's call, and the one that assigns the loss after it."""
    first = draft.source.statement(find_network_call(draft, site))
    block = block_of(draft, first)
    following = block[block.index(first) :]
    for index, statement in enumerate(following):
        losses = _names_in_backward(statement)
        if losses:
            assignments = [s for s in following[:index] if losses & _assigned_names(s)]
            return first, (assignments or [first])[-1]
    if isinstance(first, ast.Return | ast.If | ast.With | ast.For | ast.While):
        raise CannotFix("the loss is computed elsewhere")
    return first, first


def find_evaluation_loop(draft: Draft, site: Site) -> ast.stmt:
    """Return the outermost loop around a site, within its function, that seems not to train."""
    statement = draft.find_statement(site)
    nodes = (statement, *enclosing_nodes(draft, statement))
    loops = [node for node in nodes if isinstance(node, _LOOPS) and not _trains(draft, node)]
    if not loops:
        raise CannotFix("it is not in a loop that only evaluates")
    return loops[-1]


def find_training_loop(draft: Draft, site: Site, name: str) -> ast.stmt:
    """Return the outermost loop around a site, up to the first one that assigns `name`."""
    outermost: ast.stmt | None = None
    for node in enclosing_nodes(draft, draft.find_statement(site)):
        if isinstance(node, _LOOPS):
            if any(name in _assigned_names(inner) for inner in ast.walk(node)):
                break
            outermost = node
    if outermost is None:
        raise CannotFix("it is not in a loop of its function")
    return outermost


def find_enclosing_loop(draft: Draft, node: ast.AST) -> ast.For:
    """Return the innermost `for` around a node, within its function."""
    for outer in enclosing_nodes(draft, node):
        if isinstance(outer, ast.For):
            return outer
    raise CannotFix("it is not in a for loop of its function")


def find_batch_copies(loop: ast.For) -> list[ast.Call]:
    """Return the calls of `.to` and `.cuda` on a loop's target, or on parts of it."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    return [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to", "cuda")
        and _root_name(node.func.value) in names
    ]


def enclosing_nodes(draft: Draft, node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes around a node, from the innermost outwards, up to its function or class."""
    for outer in draft.source.ancestors(node):
        if isinstance(outer, _SCOPES):
            return
        yield outer


def unused_name(draft: Draft, name: str) -> str:
    """Return `name`, with as many underscores appended as make it unused in the script."""
    source = draft.source
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
    used = {node.id for node in source.all(ast.Name)}
    used |= {node.arg for node in source.all(ast.arg)}
    used |= {node.name for node in source.all(*named)}
    used |= {(node.asname or node.name).partition(".")[0] for node in source.all(ast.alias)}
    while name in used:
        name += "_"
    return name


def _network_names(draft: Draft) -> set[str]:
    """Return the expressions on which the script calls one of _NETWORK_METHODS."""
    return {
        draft.source.code(call.func.value)
        for call in draft.source.all(ast.Call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _NETWORK_METHODS
    }


def _names_in_backward(statement: ast.stmt) -> set[str]:
    """Return the names in a statement's first call of `backward`, such as `loss.backward()`."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and called_name(node) == "backward":
            return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return set()


def _trains(draft: Draft, node: ast.AST) -> bool:
    """Return whether a node calls `backward`, `step` or `train...`, also in the file's functions.

    Functions are found by name alone, so that a method counts whatever its object is.
    """
    functions = draft.source.all(ast.FunctionDef, ast.AsyncFunctionDef)
    called: set[str] = set()
    queue = [node]
    while queue:
        calls = (inner for inner in ast.walk(queue.pop()) if isinstance(inner, ast.Call))
        new = {called_name(call) for call in calls} - called
        if any(name in ("backward", "step") or name.startswith("train") for name in new):
            return True
        called |= new
        queue += [function for function in functions if function.name in new]
    return False


def _assigned_names(node: ast.AST) -> set[str]:
    """Return the names and attributes that a statement assigns, not counting those in its body."""
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.NamedExpr():
            targets = [node.target]
        case _:
            return set()
    nodes = [inner for target in targets for inner in ast.walk(target)]
    return {
        ast.unparse(inner)
        for inner in nodes
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store)
    }


def _root_name(node: ast.AST) -> str:
    """Return the name at the start of an expression such as `data[0]`, or "" if there is none."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
