"""Find the parts of a training loop at a site: the network's call, its batch, loss and loops."""

import ast
from collections.abc import Iterator

from onsight_explain.fixes.draft import CannotFix, Draft, block_of, called_name
from onsight_explain.tracing.sites import Site

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
_NETWORK_METHODS = (
    "parameters",
    "train",
    "eval",
)  # calling any of these marks the receiver as a network


def find_network_call(draft: Draft, site: Site) -> ast.Call:
    """Return the call of the network at a site. Raises CannotFix if it is not certain."""
    if site.end:  # the exact position of the call is known, not only its line
        return draft.find_call(site)
    networks, line = _network_names(draft), draft.current_line(site.line)
    calls = [
        node
        for node in draft.source.nodes
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or line)
        and draft.source.code(node.func) in networks
    ]
    if len(calls) != 1:
        raise CannotFix("cannot tell which call is the model's forward")
    return calls[0]


def find_batch_argument(draft: Draft, site: Site) -> ast.expr:
    """Return the images that the script passes to the network."""
    arguments = find_network_call(draft, site).args
    if not arguments or isinstance(arguments[0], ast.Starred):
        raise CannotFix("the network is not given its images by position")
    return arguments[0]


def fill_names(draft: Draft, site: Site | None, template: str) -> str:
    """Fill in the script's {network}, and {device}, the type of the device it computes on."""
    if site is None or "{" not in template:
        return template
    call = find_network_call(draft, site)
    network = draft.source.code(call.func)
    is_named = bool(call.args) and isinstance(call.args[0], ast.Name)
    tensor = draft.source.code(call.args[0]) if is_named else f"next({network}.parameters())"
    return template.replace("{network}", network).replace("{device}", f"{tensor}.device.type")


def find_forward_block(draft: Draft, site: Site) -> tuple[ast.stmt, ast.stmt]:
    """Return the first and last statement from the network's call to the loss."""
    first = draft.source.statement(find_network_call(draft, site))
    block = block_of(draft, first)
    following = block[block.index(first) :]
    for index, statement in enumerate(following):
        losses = _names_in_backward(statement)
        if losses:
            assignments = [s for s in following[:index] if losses & _assigned_names(s)]
            return first, (assignments or [first])[-1]
    if isinstance(first, ast.Return | ast.If | ast.With | ast.For | ast.While):
        raise CannotFix("the loss is made elsewhere")
    return first, first


def find_evaluation_loop(draft: Draft, site: Site) -> ast.stmt:
    """Return the outermost loop around a site, in its function, that makes no update."""
    outermost: ast.stmt | None = None
    for node in enclosing_nodes(draft, draft.find_statement(site)):
        if isinstance(node, _LOOPS) and not _calls_backward(node):
            outermost = node
    if outermost is None:
        statement = draft.find_statement(site)
        if not isinstance(statement, _LOOPS):
            raise CannotFix("it is not in a separate loop")
        return statement
    return outermost


def find_training_loop(draft: Draft, site: Site, name: str) -> ast.stmt:
    """Return the outermost enclosing loop that does not reassign `name` (e.g. the network)."""
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
    """Return the innermost `for` around a node."""
    for outer in enclosing_nodes(draft, node):
        if isinstance(outer, ast.For):
            return outer
    raise CannotFix("it is not in a for loop of its function")


def find_batch_copies(loop: ast.For) -> list[ast.Call]:
    """Return the calls of `.to` and `.cuda` on what a loop receives from its loader."""
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
    """Yield the nodes around a node, from the innermost outwards, within its function."""
    for outer in draft.source.ancestors(node):
        if isinstance(outer, _SCOPES):
            return
        yield outer


def unused_name(draft: Draft, name: str) -> str:
    """Return a name that the script does not use: this one, or this one with underscores."""
    nodes = draft.source.nodes
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    used |= {node.name for node in nodes if isinstance(node, definitions)}
    aliases = [node for node in nodes if isinstance(node, ast.alias)]
    used |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    handlers = [node for node in nodes if isinstance(node, ast.ExceptHandler)]
    used |= {handler.name for handler in handlers if handler.name}
    while name in used:
        name += "_"
    return name


def _network_names(draft: Draft) -> set[str]:
    """Return the expressions whose `parameters()`, `train()` or `eval()` the script calls."""
    return {
        draft.source.code(node.func.value)
        for node in draft.source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _NETWORK_METHODS
    }


def _names_in_backward(statement: ast.stmt) -> set[str]:
    """Return the names in a call such as `loss.backward()`; none if the statement has none."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and called_name(node) == "backward":
            return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return set()


def _calls_backward(node: ast.AST) -> bool:
    return any(
        isinstance(inner, ast.Call) and called_name(inner) == "backward" for inner in ast.walk(node)
    )


def _assigned_names(node: ast.AST) -> set[str]:
    """Return the names and attributes that a statement itself assigns, as source code."""
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
    """Return the name that an expression such as `data[0]` begins with, or ""."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
