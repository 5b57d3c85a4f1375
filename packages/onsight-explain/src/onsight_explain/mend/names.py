"""The script's own names and blocks at a site: the network's call, its batch, loss and loops."""

import ast
from collections.abc import Iterator

from onsight_explain.mend.draft import CannotMend, Draft, called
from onsight_explain.mend.layout import siblings
from onsight_explain.tracing.sites import Site

LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Module)
_OF_NETWORKS = ("parameters", "train", "eval", "state_dict", "zero_grad", "to", "cuda")


def network_call(draft: Draft, site: Site) -> ast.Call:
    """The call of the network at a site. Raises CannotMend if it is not known which one it is."""
    if site.end:
        return draft.call(site)
    networks, line = _network_names(draft), draft.line_now(site.line)
    calls = [one for one in draft.source.nodes if isinstance(one, ast.Call)]
    found = [
        one
        for one in calls
        if one.lineno <= line <= (one.end_lineno or line)
        and draft.source.code(one.func) in networks
    ]
    if len(found) != 1:
        raise CannotMend("it is not certain which call is the network's")
    return found[0]


def batch_argument(draft: Draft, site: Site) -> ast.expr:
    """The images that the script gives the network."""
    given = network_call(draft, site).args
    if not given or isinstance(given[0], ast.Starred):
        raise CannotMend("the network is not given its images by position")
    return given[0]


def in_own_names(draft: Draft, site: Site | None, template: str) -> str:
    """Code with the script's own {network} and {device}, the type of the device it computes on."""
    if site is None or "{" not in template:
        return template
    call = network_call(draft, site)
    network = draft.source.code(call.func)
    is_named = bool(call.args) and isinstance(call.args[0], ast.Name)
    placed = draft.source.code(call.args[0]) if is_named else f"next({network}.parameters())"
    return template.replace("{network}", network).replace("{device}", f"{placed}.device.type")


def forward_block(draft: Draft, site: Site) -> tuple[ast.stmt, ast.stmt]:
    """From the statement that calls the network to the one that makes the loss."""
    first = draft.source.statement(network_call(draft, site))
    block = siblings(draft, first)
    following = block[block.index(first) :]
    for at, statement in enumerate(following):
        losses = _backward_of(statement)
        if losses:
            makers = [one for one in following[:at] if losses & _assigned(one)]
            return first, (makers or [first])[-1]
    if isinstance(first, ast.Return | ast.If | ast.With | ast.For | ast.While):
        raise CannotMend("the loss is made elsewhere")
    return first, first


def evaluation_block(draft: Draft, site: Site) -> tuple[ast.stmt, ast.stmt]:
    """The outermost loop around a site, in its function, that makes no update."""
    statement = draft.statement(site)
    chosen: ast.stmt = statement
    for one in around(draft, statement):
        if isinstance(one, LOOPS) and not _updates(one):
            chosen = one
    if not isinstance(chosen, LOOPS):
        raise CannotMend("it is not in a loop of its own")
    return chosen, chosen


def loop_around(draft: Draft, node: ast.AST) -> ast.For:
    """The innermost `for` around a node."""
    for one in around(draft, node):
        if isinstance(one, ast.For):
            return one
    raise CannotMend("it is not in a for loop of its function")


def before_training(draft: Draft, site: Site, name: str) -> ast.stmt:
    """The outermost loop around a site in which nothing else gets a name, such as the network's."""
    chosen: ast.stmt | None = None
    for one in around(draft, draft.statement(site)):
        if isinstance(one, LOOPS):
            if any(name in _assigned(inner) for inner in ast.walk(one)):
                break
            chosen = one
    if chosen is None:
        raise CannotMend("it is not in a loop of its function")
    return chosen


def around(draft: Draft, node: ast.AST) -> Iterator[ast.AST]:
    """What is around a node, from the innermost outwards, within its function."""
    for one in draft.source.ancestors(node):
        if isinstance(one, _SCOPES):
            return
        yield one


def free_name(draft: Draft, wanted: str) -> str:
    """A name that the script does not use: this one, or with underscores."""
    used = {one.id for one in draft.source.nodes if isinstance(one, ast.Name)}
    used |= {one.arg for one in draft.source.nodes if isinstance(one, ast.arg)}
    used |= {
        one.name for one in draft.source.nodes if isinstance(one, ast.FunctionDef | ast.ClassDef)
    }
    while wanted in used:
        wanted += "_"
    return wanted


def _network_names(draft: Draft) -> set[str]:
    """Expressions whose `parameters()`, `train()` or `eval()` the script calls."""
    found = set()
    for one in draft.source.nodes:
        if isinstance(one, ast.Call) and called(one) in _OF_NETWORKS[:3]:
            assert isinstance(one.func, ast.Attribute | ast.Name)
            if isinstance(one.func, ast.Attribute):
                found.add(draft.source.code(one.func.value))
    return found


def _backward_of(statement: ast.stmt) -> set[str]:
    """The names in a statement such as `loss.backward()`; none if it is not one."""
    for one in ast.walk(statement):
        if isinstance(one, ast.Call) and called(one) == "backward":
            return {part.id for part in ast.walk(one) if isinstance(part, ast.Name)}
    return set()


def _assigned(node: ast.AST) -> set[str]:
    """The names and attributes that a statement itself assigns, as source code."""
    match node:
        case ast.Assign():
            targets = node.targets
        case ast.AugAssign() | ast.AnnAssign() | ast.For() | ast.NamedExpr():
            targets = [node.target]
        case _:
            return set()
    flat = [part for target in targets for part in ast.walk(target)]
    return {ast.unparse(one) for one in flat if isinstance(one, ast.Name | ast.Attribute)}


def _updates(node: ast.AST) -> bool:
    """Whether gradients are computed or used inside."""
    return any(isinstance(one, ast.Call) and called(one) == "backward" for one in ast.walk(node))
