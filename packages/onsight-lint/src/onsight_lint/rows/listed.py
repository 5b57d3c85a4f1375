"""Rule on rows paired by the order in which a folder happens to be listed."""

import ast
import re
from collections.abc import Iterator

from onsight_lint.calls import last_name
from onsight_lint.context import Context
from onsight_lint.fix import fixed, replaced
from onsight_lint.flow import key_of
from onsight_lint.rows.listing import is_listing
from onsight_lint.rule import Mistake
from onsight_lint.source import FUNCTIONS, own_nodes

_WHY = (
    "Folders are listed in arbitrary order: it differs between machines, and between two folders "
    "with the same file names."
)
_WHY_CLASSES = (
    "Folders are listed in arbitrary order, so on another machine a class may get a different "
    "number from the one that the network learned."
)
_READ_FILES = re.compile(r"^(read_csv|load|loadtxt|genfromtxt|read_json|readlines|read_table)$")
_CLASS_WORDS = re.compile(r"label|class|target|cls")


def listed(context: Context) -> Iterator[Mistake]:
    """Unsorted listings of folders that are paired with something by their order."""
    for source in context.script.sources:
        for node in source.all(ast.Call, ast.For, ast.DictComp, ast.ClassDef):
            if isinstance(node, ast.Call):
                yield from _zipped(context, node)
            if isinstance(node, ast.For):
                yield from _numbered(context, node.iter, node.target, node)
            if isinstance(node, ast.DictComp):
                first = node.generators[0]
                holder = source.statement(node)
                named = isinstance(holder, ast.Assign) and "idx" in last_name(holder.targets[0])
                yield from _numbered(context, first.iter, first.target, node, named)
            if isinstance(node, ast.ClassDef):
                yield from _indexed_alike(context, node)


def _zipped(context: Context, call: ast.Call) -> Iterator[Mistake]:
    """`zip(os.listdir(a), ...)`."""
    if (
        last_name(call.func) != "zip"
        or len(call.args) < 2
        or context.script.path_of(call.func) != "zip"
    ):
        return
    listings = [one for one in call.args if is_listing(context, one)]
    others = [one for one in call.args if not any(one is listing for listing in listings)]
    if len(listings) < 2 and not (listings and any(_is_labels(context, one) for one in others)):
        return
    edits = [replaced(one, f"sorted({context.script.code(one)})") for one in listings]
    text = fixed(context.script, call, edits)
    mend = [] if context.values.calls("scandir") else edits  # its entries cannot be sorted
    problem = f"{context.script.code(listings[0])} is paired by the order in which it is listed"
    yield Mistake(call, problem, text, _WHY, mend)


def _numbered(
    context: Context, iterated: ast.expr, target: ast.expr, node: ast.AST, named: bool = False
) -> Iterator[Mistake]:
    """`for label, name in enumerate(os.listdir(root))`."""
    if not isinstance(iterated, ast.Call) or last_name(iterated.func) != "enumerate":
        return
    if not iterated.args or not is_listing(context, iterated.args[0]):
        return
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    if named or _CLASS_WORDS.search(last_name(first)):
        listing = iterated.args[0]
        new = f"sorted({context.script.code(listing)})"
        text = fixed(context.script, listing, [replaced(listing, new)])
        problem = "classes are numbered in the arbitrary order in which their folders are listed"
        yield Mistake(listing, problem, text, _WHY_CLASSES)


def _indexed_alike(context: Context, owner: ast.ClassDef) -> Iterator[Mistake]:
    """`self.images[i]` used with `self.masks[i]`, both in the order of a listing."""
    members = [
        member
        for member in context.script.scope(owner).members
        if context.script.enclosing_class(member.node) is owner
        and last_name(member.receiver) == "self"
        and not member.steps
    ]
    listed = {one.key: one for one in members if is_listing(context, one.value)}
    listed = {key: one for key, one in listed.items() if not _is_sorted_later(owner, key)}
    if not listed:
        return
    for method in owner.body:
        if not isinstance(method, FUNCTIONS):
            continue
        places: dict[str, set[str]] = {}
        for node in own_nodes(method):
            if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
                words = context.script.code(node.slice)
                places.setdefault(node.value.attr, set()).add(words)
        for key, one in listed.items():
            for other in members:
                together = places.get(key, set()) & places.get(other.key, set())
                if other.key == key or not together:
                    continue
                if _roots(context, one.value) & _roots(context, other.value):
                    continue
                if other.key in listed or _is_labels(context, other.value):
                    new = f"sorted({context.script.code(one.value)})"
                    text = fixed(context.script, one.value, [replaced(one.value, new)])
                    problem = f"self.{key} and self.{other.key} are paired by an arbitrary order"
                    yield Mistake(one.node, problem, text, _WHY)
                    return


def _roots(context: Context, value: ast.expr, depth: int = 3) -> set[ast.AST]:
    """The folder listings that a list was made from."""
    found: set[ast.AST] = set()
    for origin in context.values.origins(value) if depth else []:
        if isinstance(origin.node, (ast.ListComp, ast.GeneratorExp)):
            found |= _roots(context, origin.node.generators[0].iter, depth - 1)
        else:
            found.add(origin.node)
    return found


def _is_sorted_later(owner: ast.ClassDef, key: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "sort"
        and key_of(node.func.value) == f"self.{key}"
        for node in ast.walk(owner)
    )


def _is_labels(context: Context, expression: ast.expr) -> bool:
    """Whether a value is a list of labels, by its name or because it is read from a file."""
    if re.search(r"label|target|(^|_)y$|classes$", last_name(expression)):
        origins = context.values.origins(expression)
        return not any(_is_made_of_names(one.node) for one in origins)
    for origin in context.values.origins(expression):
        names = {last_name(one.func) for one in ast.walk(origin.node) if isinstance(one, ast.Call)}
        if any(_READ_FILES.match(name) for name in names):
            return True
    return False


def _is_made_of_names(node: ast.AST) -> bool:
    """Whether labels were derived from the listed names themselves."""
    return isinstance(node, (ast.ListComp, ast.GeneratorExp))
