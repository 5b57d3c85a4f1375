"""Lists in the arbitrary order of a folder listing, and where their order matters."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.edits import replace_node, show_changed
from onsight_lint.rule import Context, Mistake
from onsight_lint.scopes import Member
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


def is_listing(context: Context, expression: ast.expr) -> bool:
    """Return whether a list is in the order of an unsorted folder listing."""
    if _is_sorted_in_place(context, expression):
        return False
    origins = context.values.origins(expression)
    return bool(origins) and all(_lists_folder(context, origin) for origin in origins)


def is_sorted_listing(context: Context, value: ast.expr) -> bool:
    """Return whether a value is a sorted folder listing."""
    if isinstance(value, ast.Call) and last_name(value.func) in ("sorted", "natsorted"):
        return bool(value.args) and is_listing(context, value.args[0])
    return False


def find_paired_listings(context: Context) -> Iterator[Mistake]:
    """Find unsorted listings of folders that are paired with something by their order."""
    for source in context.script.sources:
        for node in source.all(ast.Call, ast.For, ast.DictComp, ast.ClassDef):
            if isinstance(node, ast.Call):
                yield from _zipped(context, node)
            if isinstance(node, ast.For):
                yield from _numbered(context, node.iter, node.target)
            if isinstance(node, ast.DictComp):
                first = node.generators[0]
                holder = source.statement(node)
                is_index = isinstance(holder, ast.Assign) and "idx" in last_name(holder.targets[0])
                yield from _numbered(context, first.iter, first.target, is_index)
            if isinstance(node, ast.ClassDef):
                yield from _indexed_together(context, node)


def _is_sorted_in_place(context: Context, expression: ast.expr) -> bool:
    """Whether `names.sort()` is called anywhere."""
    key = key_of(expression)
    owners = map(call_owner, context.values.calls("sort"))
    return bool(key) and any(owner is not None and key_of(owner) == key for owner in owners)


def _lists_folder(context: Context, origin: Origin, depth: int = 3) -> bool:
    node = origin.node
    if origin.steps or not depth:
        return False
    if isinstance(node, ast.Call):
        path = context.script.path_of(node.func)
        if path in _LISTINGS:
            return True
        is_method = isinstance(node.func, ast.Attribute) and not path
        return is_method and last_name(node.func) in ("iterdir", "glob", "rglob")
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and len(node.generators) == 1:
        inner = context.values.origins(node.generators[0].iter)
        return bool(inner) and all(_lists_folder(context, item, depth - 1) for item in inner)
    return False


def _zipped(context: Context, call: ast.Call) -> Iterator[Mistake]:
    """`zip(os.listdir(a), ...)`."""
    is_zip = last_name(call.func) == "zip" and context.script.path_of(call.func) == "zip"
    if not is_zip or len(call.args) < 2:
        return
    listings = [value for value in call.args if is_listing(context, value)]
    others = [value for value in call.args if not any(value is item for item in listings)]
    if len(listings) < 2 and not (
        listings and any(_is_label_list(context, value) for value in others)
    ):
        return
    code = context.script.code
    changes = [replace_node(context.script, item, f"sorted({code(item)})") for item in listings]
    problem = f"{code(listings[0])} is paired by position, but its order is arbitrary"
    yield Mistake(
        call,
        problem,
        show_changed(context.script, call, changes),
        _WHY,
        [] if context.values.calls("scandir") else changes,  # its entries cannot be sorted
    )


def _numbered(
    context: Context, iterated: ast.expr, target: ast.expr, is_index: bool = False
) -> Iterator[Mistake]:
    """`for label, name in enumerate(os.listdir(root))`."""
    if not isinstance(iterated, ast.Call) or last_name(iterated.func) != "enumerate":
        return
    if not iterated.args or not is_listing(context, iterated.args[0]):
        return
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    if is_index or _CLASS_NAME.search(last_name(first)):
        problem = "classes are numbered in the arbitrary order of a folder listing"
        listing = iterated.args[0]
        yield Mistake(listing, problem, _show_sorted(context, listing), _WHY_CLASSES)


def _indexed_together(context: Context, owner: ast.ClassDef) -> Iterator[Mistake]:
    """`self.images[i]` used with `self.masks[i]`, both in the order of a listing."""
    members = [
        member
        for member in context.script.scope(owner).members
        if context.script.enclosing_class(member.node) is owner
        and last_name(member.receiver) == "self"
        and not member.steps
    ]
    listed = {item.key: item for item in members if is_listing(context, item.value)}
    listed = {key: item for key, item in listed.items() if not _is_sorted_later(owner, key)}
    if not listed:
        return
    for method in owner.body:
        if not isinstance(method, FUNCTIONS):
            continue
        indices: dict[str, set[str]] = {}
        for node in own_nodes(method):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
                index = context.script.code(node.slice)
                indices.setdefault(node.value.attr, set()).add(index)
        for key, member in listed.items():
            for other in members:
                if other.key == key or not indices.get(key, set()) & indices.get(other.key, set()):
                    continue
                if _have_common_listing(context, member, other):
                    continue
                if other.key in listed or _is_label_list(context, other.value):
                    problem = (
                        f"self.{key} and self.{other.key} are paired by position, but their order "
                        "is arbitrary"
                    )
                    fixed = _show_sorted(context, member.value)
                    yield Mistake(member.node, problem, fixed, _WHY)
                    return


def _have_common_listing(context: Context, member: Member, other: Member) -> bool:
    return bool(_roots(context, member.value) & _roots(context, other.value))


def _roots(context: Context, value: ast.expr, depth: int = 3) -> set[ast.AST]:
    """The folder listings that a list was made from."""
    roots: set[ast.AST] = set()
    for origin in context.values.origins(value) if depth else []:
        if isinstance(origin.node, (ast.ListComp, ast.GeneratorExp)):
            roots |= _roots(context, origin.node.generators[0].iter, depth - 1)
        else:
            roots.add(origin.node)
    return roots


def _is_sorted_later(owner: ast.ClassDef, key: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sort"
        and key_of(node.func.value) == f"self.{key}"
        for node in ast.walk(owner)
    )


def _is_label_list(context: Context, expression: ast.expr) -> bool:
    """Whether a value is a list of labels, by its name or because it is read from a file."""
    origins = context.values.origins(expression)
    if _LABEL_LIST_NAME.search(last_name(expression)):
        # A comprehension derives the labels from the listed names themselves.
        return not any(isinstance(item.node, (ast.ListComp, ast.GeneratorExp)) for item in origins)
    calls = (
        node for origin in origins for node in ast.walk(origin.node) if isinstance(node, ast.Call)
    )
    return any(_FILE_READER.match(last_name(call.func)) for call in calls)


def _show_sorted(context: Context, listing: ast.expr) -> str:
    new = f"sorted({context.script.code(listing)})"
    return show_changed(context.script, listing, [replace_node(context.script, listing, new)])
