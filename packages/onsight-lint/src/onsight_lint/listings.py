"""Lists in the arbitrary order of a folder listing, and where their order matters."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed, show_replaced
from onsight_lint.rule import Context, Mistake
from onsight_lint.syntax import FUNCTIONS, call_owner, key_of, last_name, own_nodes
from onsight_lint.values import Origin

_LISTINGS = frozenset({"os.listdir", "os.scandir", "glob.glob", "glob.iglob"})
_WHY = (
    "Folders are listed in arbitrary order, which differs between machines, and between folders "
    "with the same file names."
)
_WHY_CLASSES = (
    "Folders are listed in arbitrary order, so on another machine a class may get a different "
    "number from the one that the network has learned."
)
_FILE_READER = re.compile(r"^(read_csv|load|loadtxt|genfromtxt|read_json|readlines|read_table)$")
_CLASS_NAME = re.compile(r"label|class|target|cls")
_LABEL_LIST_NAME = re.compile(r"label|target|(^|_)y$|classes$")


def lists_folder(context: Context, value: ast.expr) -> bool:
    """Return whether a value is a folder listing, sorted or not."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("sorted", "natsorted"):
        return bool(value.args) and lists_folder(context, value.args[0])
    origins = context.values.origins(value)
    return bool(origins) and all(_is_folder_listing(context, origin) for origin in origins)


def find_paired_listings(context: Context) -> Iterator[Mistake]:
    """Find unsorted folder listings that are paired with other data or numbered by position."""
    script = context.script
    for call in script.nodes(ast.Call):
        yield from _check_zip(context, call)
    for loop in script.nodes(ast.For):
        yield from _check_enumerate(context, loop.iter, loop.target)
    for node in script.nodes(ast.DictComp):
        first, statement = node.generators[0], script.statement(node)
        name = last_name(statement.targets[0]) if isinstance(statement, ast.Assign) else ""
        yield from _check_enumerate(context, first.iter, first.target, "idx" in name)
    for owner in script.nodes(ast.ClassDef):
        yield from _check_dataset(context, owner)


def _is_unsorted_listing(context: Context, value: ast.expr) -> bool:
    """Return whether a value is a folder listing that is never sorted."""
    if _is_sorted_in_place(context, value):
        return False
    origins = context.values.origins(value)
    return bool(origins) and all(
        _is_folder_listing(context, origin, unsorted=True) for origin in origins
    )


def _is_folder_listing(
    context: Context, origin: Origin, unsorted: bool = False, depth: int = 3
) -> bool:
    """Return whether an origin lists a folder, or is a comprehension over a folder listing.

    unsorted: excludes lists that are assigned to a variable on which `sort` is called.
    """
    node = origin.node
    if origin.steps or not depth or (unsorted and _is_assigned_and_sorted(context, node)):
        return False
    match node:
        case ast.Call(func=function):
            path = context.script.path_of(function)
            is_method = isinstance(function, ast.Attribute) and not path
            is_listing_method = is_method and last_name(function) in ("iterdir", "glob", "rglob")
            return path in _LISTINGS or is_listing_method
        case ast.ListComp(generators=[loop]) | ast.GeneratorExp(generators=[loop]):
            iterated = context.values.origins(loop.iter)
            return bool(iterated) and all(
                _is_folder_listing(context, item, unsorted, depth - 1) for item in iterated
            )
    return False


def _is_assigned_and_sorted(context: Context, value: ast.AST) -> bool:
    """Return whether `names = value` assigns a variable on which `names.sort()` is called."""
    match context.script.parent(value):
        case ast.Assign(targets=targets):
            return any(_is_sorted_in_place(context, target) for target in targets)
        case ast.AnnAssign(target=target):
            return _is_sorted_in_place(context, target)
    return False


def _is_sorted_in_place(context: Context, variable: ast.expr) -> bool:
    """Return whether `sort` is called on a variable, or on the attribute of self."""
    key = key_of(variable)
    owners = map(call_owner, context.values.calls("sort")) if key else ()
    return any(
        owner is not None and key_of(owner) == key and _is_same_variable(context, owner, variable)
        for owner in owners
    )


def _is_same_variable(context: Context, a: ast.expr, b: ast.expr) -> bool:
    """Return whether two expressions with the same key have it in the same scope or class."""
    if key_of(a).startswith("self."):
        return context.script.enclosing_class(a) is context.script.enclosing_class(b)
    first, second = _first_name(a), _first_name(b)
    bindings = context.script.scope(first).lookup(first)
    others = context.script.scope(second).lookup(second)
    return any(binding is other for binding in bindings for other in others)


def _first_name(expression: ast.expr) -> ast.Name:
    """Return the name that a dotted key starts with."""
    while isinstance(expression, (ast.Attribute, ast.Subscript)):
        expression = expression.value
    assert isinstance(expression, ast.Name)
    return expression


def _check_zip(context: Context, call: ast.Call) -> Iterator[Mistake]:
    """Check `zip(os.listdir(a), ...)`."""
    if context.script.path_of(call.func) != "zip":
        return
    listings = [value for value in call.args if _is_unsorted_listing(context, value)]
    is_paired = any(
        not _find_listings(context, listing) & _find_listings(context, value)
        for listing in listings
        for value in call.args
        if value is not listing and (value in listings or _is_label_list(context, value))
    )
    if not is_paired:
        return
    changes = [
        replace_node(context.script, listing, _sorted_code(context, listing))
        for listing in listings
    ]
    code = context.script.code(listings[0])
    problem = f"{code} is paired by position, but its order is arbitrary"
    fixed = show_changed(context.script, call, changes)
    # Lists made from the entries of scandir may have no order.
    is_certain = not context.values.calls("scandir")
    yield Mistake(call, problem, fixed, _WHY, changes if is_certain else [])


def _check_enumerate(
    context: Context, iterated: ast.expr, target: ast.expr, numbers_classes: bool = False
) -> Iterator[Mistake]:
    """Check `for label, name in enumerate(os.listdir(root))`."""
    if not isinstance(iterated, ast.Call) or last_name(iterated.func) != "enumerate":
        return
    if not iterated.args or not _is_unsorted_listing(context, iterated.args[0]):
        return
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    if numbers_classes or _CLASS_NAME.search(last_name(first)):
        problem = "classes are numbered in the arbitrary order of a folder listing"
        listing = iterated.args[0]
        fixed = show_replaced(context.script, listing, _sorted_code(context, listing))
        yield Mistake(listing, problem, fixed, _WHY_CLASSES)


def _check_dataset(context: Context, owner: ast.ClassDef) -> Iterator[Mistake]:
    """Check that no unsorted `self.images[i]` is used with `self.masks[i]`."""
    members = [
        member
        for member in context.script.scope(owner).members
        if context.script.enclosing_class(member.node) is owner
        and last_name(member.receiver) == "self"
        and not member.steps
    ]
    listings = {item.key: item for item in members if _is_unsorted_listing(context, item.value)}
    if not listings:
        return
    for method in owner.body:
        if not isinstance(method, FUNCTIONS):
            continue
        indices: dict[str, set[str]] = defaultdict(set)  # the code of each attribute's indices
        for node in own_nodes(method):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
                indices[node.value.attr].add(context.script.code(node.slice))
        for key, member in listings.items():
            for other in members:
                if other.key == key or not indices[key] & indices[other.key]:
                    continue
                if _find_listings(context, member.value) & _find_listings(context, other.value):
                    continue
                if other.key in listings or _is_label_list(context, other.value):
                    problem = (
                        f"self.{key} and self.{other.key} are paired by position, but their order "
                        "is arbitrary"
                    )
                    new = _sorted_code(context, member.value)
                    fixed = show_replaced(context.script, member.value, new)
                    yield Mistake(member.node, problem, fixed, _WHY)
                    return


def _find_listings(context: Context, value: ast.expr, depth: int = 3) -> set[ast.AST]:
    """Return the calls that a list is derived from through comprehensions.

    Lists with the same call are in the same order.
    """
    listings: set[ast.AST] = set()
    for origin in context.values.origins(value) if depth else []:
        if isinstance(origin.node, (ast.ListComp, ast.GeneratorExp)):
            listings |= _find_listings(context, origin.node.generators[0].iter, depth - 1)
        else:
            listings.add(origin.node)
    return listings


def _is_label_list(context: Context, expression: ast.expr) -> bool:
    """Return whether a value is named like a list of labels, or is read from a file."""
    origins = context.values.origins(expression)
    if _LABEL_LIST_NAME.search(last_name(expression)):
        # A comprehension derives the labels from the listed names themselves.
        return not any(isinstance(item.node, (ast.ListComp, ast.GeneratorExp)) for item in origins)
    calls = (
        node for origin in origins for node in ast.walk(origin.node) if isinstance(node, ast.Call)
    )
    return any(_FILE_READER.match(last_name(call.func)) for call in calls)


def _sorted_code(context: Context, listing: ast.expr) -> str:
    """Return the code of a sorted listing; the entries of scandir are sorted by name."""
    key = ", key=lambda entry: entry.name" if _has_entries(context, listing) else ""
    return f"sorted({context.script.code(listing)}{key})"


def _has_entries(context: Context, listing: ast.expr, depth: int = 3) -> bool:
    """Return whether a listing contains the entries of `os.scandir`, which have no order."""
    for origin in context.values.origins(listing) if depth else []:
        match origin.node:
            case ast.Call(func=function) if context.script.path_of(function) == "os.scandir":
                return True
            case ast.ListComp(
                elt=ast.Name(id=name), generators=[ast.comprehension(target=target, iter=iterated)]
            ) if name == last_name(target) and _has_entries(context, iterated, depth - 1):
                return True
    return False
